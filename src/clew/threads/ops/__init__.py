"""Operations on whole threads: fork, copy, export, verify, repair, gc, prune, purge, rekey."""
