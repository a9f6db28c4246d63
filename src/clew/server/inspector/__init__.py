"""The inspector: the web pages of a service. The server makes them from templates, with one style sheet and one script.

Paths: `/` (threads), `/overview`, `/login`, `/t/{thread}` (a thread, its id as in the API) and below it `/turns`, `/events`,
`/files`, `/entries`, `/export.clew`, `/export.md`, `/fork`, `/rewind`, `/answer`, `/describe`.

Tests find elements of the pages by their attribute `data-test`. So its values stay when the looks change; they are:

every page: `nav-threads`, `nav-overview`, `theme-toggle`, `help-button`, `help`, `sign-out`, `read-only`, `namespace`, and
    `live`, whose `data-state` is `on` once events flow
login: `login`, `token`, `namespace-field`, `sign-in`, `login-error`
threads: `filters`, `search`, `filter-status`, `filter-agent`, `filter-tags`, `filter-order`, `apply`, `threads`,
    `thread-row`, `thread-link`, `thread-id`, `status` (with `data-status`), `parent-link`, `forks`, `holder`, `next-page`,
    `first-page`, `empty`, `not-sealed`
thread: `thread-title`, `not-sealed`, `facts`, `fact-status`, `fact-holder`, `fact-cost`, `fact-turns`, `resume-command`,
    `copy-resume`, `files-link`, `entries-link`, `export-clew`, `export-md`, `describe-link`, `strip`,
    `cell` (with `data-position`), `tick` (with `data-kind`), `timeline`, `turn` (with `data-turn`, `data-position`),
    `turn-duration`, `turn-tokens`, `turn-cost`, `turn-files`, `fork-here`, `rewind-here`, `prompt`, `text`, `thinking`,
    `image`, `call` (with `data-status`), `call-status`, `was-in-doubt`, `result`, `mark` (with `data-kind`), `older`,
    `newer`, `pending`, `asking`, `new-turns`, `questions`, `question`, `answer`, `answer-yes`, `answer-no`,
    `answer-submit`, `in-part`, `writing`
actions: `fork-form`, `fork-id`, `fork-submit`, `rewind-form`, `rewind-submit`, `describe-form`, `title`, `tags`,
    `describe-submit`, `back`
files: `files-form`, `files-turn`, `files-against`, `files-show`, `file-tree`, `file`, `file-content`, `change` (with
    `data-path`), `diff`, `no-changes`
entries: `frames`, `frame`, `entry` (with `data-kind`), `more-entries`, `earlier`, `later`
overview: `totals`, `total-threads`, `total-spend`, `total-storage`, `chart-spend`, `chart-activity`, `chart`,
    `table-agents`, `table-tools`
errors: `error` (with `data-status`), `error-text`

Ids of elements: `#strip` (a row with a small cell for each turn), `#timeline`, `#rows`, `#pending`, `#writing` and
`#facts`. The element of a turn is `#p{position}`, and its cell is `#c{position}`. A position counts all turns from 0,
also those that a rewind took back.
"""

from __future__ import annotations

from clew.server.inspector.app import Inspector

__all__ = ["Inspector"]
