// The inspector's script: all pages work without it; with it they are live, windowed and driven by the keyboard.
"use strict";

const root = document.documentElement;
root.classList.add("js");

const kept = {
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* private windows may keep nothing */ } },
};
const chosen = kept.get("clew-theme");
if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

const find = (selector, inside = document) => inside.querySelector(selector);
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const byId = (id) => document.getElementById(id);

function made(html) {
  const box = document.createElement("template");
  box.innerHTML = html;
  return box.content;
}

// Times in the reader's own zone.

// The same words as `ago` in clew/_runtime/text.py.
function ago(when) {
  const seconds = Math.max(0, Math.floor((Date.now() - when) / 1000));
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60]]) {
    if (seconds >= length) return `${Math.floor(seconds / length)}${unit} ago`;
  }
  return `${seconds}s ago`;
}

function showTimes(inside = document) {
  for (const time of all("time", inside)) {
    const when = new Date(time.dateTime);
    if (Number.isNaN(when.getTime())) continue;
    time.title = when.toLocaleString();
    if ("relative" in time.dataset) { time.textContent = ago(when); continue; }
    const today = when.toDateString() === new Date().toDateString();
    time.textContent = today ? when.toLocaleTimeString() : when.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  }
}

let toastTimer = 0;
function say(text) {
  const toast = byId("toast");
  toast.textContent = text;
  toast.classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => toast.classList.remove("shown"), 1800);
}

// Light and dark.

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setUpTheme() {
  byId("theme")?.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    kept.set("clew-theme", root.dataset.theme);
  });
}

// Copying.

async function copy(button) {
  const text = byId(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Copied");
}

// The keyboard: j and k walk through threads or turns.

let selected = null;
const walked = () => all("#rows > tr, #timeline > article");

function select(element) {
  selected?.classList.remove("selected");
  selected = element;
  if (!element) return;
  element.classList.add("selected");
  if (element.id.startsWith("p")) {
    all(".cell.here").forEach((cell) => cell.classList.remove("here"));
    byId(`c${element.dataset.position}`)?.classList.add("here");
  }
  const box = element.getBoundingClientRect();
  const tall = box.height > innerHeight - 120;
  element.scrollIntoView({ block: tall ? "start" : "nearest" });
  (find("a.title", element) ?? element).focus({ preventScroll: true });
}

function walk(step) {
  const items = walked();
  if (!items.length) return;
  let place = items.indexOf(selected);
  if (place < 0) {
    const visible = items.findIndex((item) => item.getBoundingClientRect().bottom > 80);
    place = step > 0 ? visible - 1 : visible + 1;
  }
  const next = items[Math.max(0, Math.min(items.length - 1, place + step))];
  select(next);
}

let afterG = 0;
function onKey(event) {
  const gone = event.target.closest("dialog:not([open])"); // browsers take the focus out of it when they draw next
  const typing = !gone && event.target.closest("input, textarea, select");
  if (event.key === "Escape" && typing) { event.target.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || byId("help")?.open) return;
  const wasG = Date.now() - afterG < 1200;
  afterG = 0;
  if (wasG && event.key === "t") location.assign("/");
  else if (wasG && event.key === "o") location.assign("/overview");
  else if (event.key === "g") afterG = Date.now();
  else if (event.key === "j") walk(1);
  else if (event.key === "k") walk(-1);
  else if (event.key === "?") byId("help")?.showModal();
  else if (event.key === "/") {
    event.preventDefault();
    const search = byId("search");
    if (search) search.focus(); else location.assign("/#search");
  } else if (event.key === "Enter" && selected?.dataset.href && (gone || !event.target.closest("a, button"))) {
    location.assign(selected.dataset.href);
  } else if (event.key === "Enter" && selected?.matches("article") && event.target === selected) {
    const parts = all("details", selected);
    const open = parts.some((part) => !part.open);
    parts.forEach((part) => { part.open = open; });
  }
}

// The list of threads.

function setUpList() {
  const form = byId("filters");
  const listing = byId("listing");
  if (!form || !listing) return;
  let timer = 0;
  const apply = () => {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value && !(name === "order" && value === "updated")) query.set(name, value);
    location.assign(`/?${query}`);
  };
  form.addEventListener("change", apply);
  find("#search", form).addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(apply, 700); });
  if (location.hash === "#search") find("#search", form).focus();
  const search = find("#search", form);
  if (search.value && performance.getEntriesByType("navigation")[0]?.type === "navigate" && document.referrer.includes(location.host)) {
    search.focus();
    search.setSelectionRange(search.value.length, search.value.length);
  }
  listing.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a, button") && !String(getSelection())) location.assign(row.dataset.href);
  });
  follow(listing.dataset.events, { rows: (html) => replaceRows(listing, html) });
}

function replaceRows(listing, html) {
  const rows = byId("rows");
  if (!rows !== !html.trim()) { location.reload(); return; }
  if (!rows) return;
  const name = selected?.id;
  const focused = rows.contains(document.activeElement);
  rows.replaceWith(find("tbody", made(`<table><tbody id="rows">${html}</tbody></table>`)));
  showTimes(listing);
  const again = name && byId(name);
  if (!again) return;
  selected = again;
  again.classList.add("selected");
  if (focused) find("a.title", again)?.focus({ preventScroll: true });
}

// The timeline of a thread: older and newer turns come as one scrolls, and nothing that is looked at moves.

const timeline = () => byId("timeline");

function anchored(change) {
  const items = all("#timeline > :not(.more)");
  const anchor = items.find((item) => item.getBoundingClientRect().bottom > 60) ?? null;
  const before = anchor?.getBoundingClientRect().top;
  change();
  const now = anchor && (byId(anchor.id) ?? anchor); // it may itself have been replaced
  if (now?.isConnected) {
    const moved = now.getBoundingClientRect().top - before;
    if (Math.abs(moved) > 0.5) scrollBy({ top: moved, behavior: "instant" });
  }
}

const loading = new WeakSet();
async function load(link) {
  if (loading.has(link)) return;
  loading.add(link);
  const answer = await fetch(timeline().dataset.url + link.dataset.load, { credentials: "same-origin" });
  if (!answer.ok) { loading.delete(link); say("These turns could not be loaded"); return; }
  const content = made(await answer.text());
  const older = link.classList.contains("more-older");
  find(older ? ".more-newer" : ".more-older", content)?.remove();
  for (const element of all("[id]", content)) if (element.parentNode === content) byId(element.id)?.remove();
  showTimes(content);
  const atEnd = !older && !find(".more-newer", content);
  anchored(() => link.replaceWith(content));
  if (atEnd) timeline().dataset.atEnd = "true";
  watchMore();
}

let moreSeen = null;
function watchMore() {
  moreSeen ??= new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) load(entry.target);
  }, { rootMargin: "600px 0px" });
  for (const link of all(".more-newer")) moreSeen.observe(link);
}

// Older turns come when one scrolls up to where they belong, never by themselves: they would push the rest away.
let lastScroll = 0;
function onScroll() {
  const up = scrollY < lastScroll;
  lastScroll = scrollY;
  const link = up && find(".more-older");
  if (link && link.getBoundingClientRect().bottom > -1200) load(link);
}

function openParts(element) {
  return new Map(all("details[id], details", element).map((part, place) => [part.id || place, part.open]));
}

function patch({ id, html, into }) {
  const fresh = made(html).firstElementChild;
  const present = byId(id);
  if (!fresh) { present?.remove(); return false; }
  showTimes(fresh.parentNode ?? fresh);
  if (present) {
    if (present.outerHTML === fresh.outerHTML) return false;
    if (present.contains(document.activeElement) && find("input, textarea, select", present)) return false;
    const open = openParts(present);
    all("details", fresh).forEach((part, place) => {
      const was = open.get(part.id || place);
      if (was !== undefined) part.open = was;
    });
    if (present === selected) { selected = fresh; fresh.classList.add("selected"); }
    if (fresh.matches("article")) fresh.style.containIntrinsicBlockSize = `auto ${present.offsetHeight}px`; // until it is drawn
    present.replaceWith(fresh);
    return false;
  }
  if (!into) return false;
  if (into === "timeline" && timeline().dataset.atEnd !== "true") return fresh.matches("article");
  const box = byId(into);
  if (!box) return false;
  const place = Number(fresh.dataset.position ?? NaN);
  const last = Number(all("article", box).at(-1)?.dataset.position ?? -1);
  if (into === "timeline" && fresh.matches("article") && place < last) return false;
  box.append(fresh);
  return fresh.matches("article");
}

let unseen = 0;
function onPatches(data) {
  const box = timeline();
  let news = 0;
  anchored(() => { for (const one of JSON.parse(data)) if (patch(one)) news += 1; });
  const atBottom = innerHeight + scrollY >= document.body.scrollHeight - 40;
  if (!news || (atBottom && box.dataset.atEnd === "true")) return;
  unseen += news;
  const pill = byId("newer-pill");
  pill.textContent = `${unseen} new turn${unseen === 1 ? "" : "s"} ↓`;
  pill.hidden = false;
}

function setUpThread() {
  const box = timeline();
  if (!box) return;
  watchMore();
  lastScroll = scrollY;
  addEventListener("scroll", onScroll, { passive: true });
  box.addEventListener("click", (event) => {
    const link = event.target.closest(".more");
    if (link) { event.preventDefault(); load(link); }
  });
  const focus = box.dataset.focus && byId(box.dataset.focus);
  if (focus) {
    select(focus);
    focus.scrollIntoView({ block: "start" });
  }
  const strip = byId("strip");
  if (strip) strip.scrollTop = strip.scrollHeight;
  strip?.addEventListener("click", (event) => {
    const cell = event.target.closest("a.cell");
    const turn = cell && byId(`p${cell.dataset.position}`);
    if (!turn) return;
    event.preventDefault();
    select(turn);
    turn.scrollIntoView({ block: "start" });
    history.replaceState(null, "", cell.href);
  });
  byId("newer-pill")?.addEventListener("click", () => {
    unseen = 0;
    byId("newer-pill").hidden = true;
    if (box.dataset.atEnd !== "true") location.assign(location.pathname);
    else scrollTo({ top: document.body.scrollHeight });
  });
  follow(box.dataset.events, { patch: onPatches, delta: onDelta });
}

// The words that a model writes now. They are shown until the turn that they become is on record.

const writing = { turn: 0, end: 0, size: 0 };
const LONGEST_WRITING = 200000;

function onDelta(data) {
  const { turn, at, end, text, kind } = JSON.parse(data);
  const box = byId("writing");
  if (!box || timeline().dataset.atEnd !== "true" || turn !== Number(box.dataset.recorded) + 1) return;
  const atBottom = innerHeight + scrollY >= document.body.scrollHeight - 40;
  if (box.hidden || turn !== writing.turn || at === 0) {
    Object.assign(writing, { turn, end: 0, size: 0 });
    box.replaceChildren();
  }
  if (writing.size < LONGEST_WRITING) words(box, kind).append(at > writing.end ? `… ${text}` : text);
  writing.end = end;
  writing.size += text.length;
  box.hidden = false;
  if (atBottom) scrollTo({ top: document.body.scrollHeight, behavior: "instant" });
}

function words(box, kind) {
  const last = box.lastElementChild;
  if (last?.dataset.kind === kind) return last;
  const part = document.createElement("div");
  part.className = kind === "thinking" ? "text soft" : "text";
  part.dataset.kind = kind;
  box.append(part);
  return part;
}

// Events of the server.

function follow(url, handlers) {
  const light = byId("live");
  if (!url || !window.EventSource) return;
  const source = new EventSource(url);
  const show = (state) => {
    if (!light) return;
    light.hidden = false;
    light.dataset.state = state;
    light.textContent = state === "on" ? "Live" : "Not live";
  };
  source.addEventListener("open", () => show("on"));
  source.addEventListener("error", () => show("off"));
  source.addEventListener("gone", (event) => { source.close(); show("off"); say(event.data); });
  for (const [name, handle] of Object.entries(handlers)) source.addEventListener(name, (event) => handle(event.data));
  addEventListener("pagehide", () => source.close());
}

addEventListener("DOMContentLoaded", () => {
  setUpTheme();
  showTimes();
  setInterval(() => showTimes(), 20000);
  byId("help-button")?.addEventListener("click", () => byId("help").showModal());
  addEventListener("keydown", onKey);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });
  setUpList();
  setUpThread();
});
