/* Fails chosen allocations of a process that is started with this library in LD_PRELOAD.

   `allocations_fail` says which: the calls of malloc, calloc and realloc by code of the library `name` are counted from 1, and
   those from number `first` to `last` get no memory. */

#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

#define MOST 64
static struct { size_t from, to; } ranges[MOST];
static int known;
static atomic_int active;
static atomic_long counted;
static long first, last;

static int note(struct dl_phdr_info *info, size_t size, void *name) {
    (void)size;
    if (strstr(info->dlpi_name, name) == NULL)
        return 0;
    for (int i = 0; i < info->dlpi_phnum && known < MOST; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD) {
            ranges[known].from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            ranges[known].to = ranges[known].from + info->dlpi_phdr[i].p_memsz;
            known++;
        }
    return 0;
}

static int fails(void *caller) {
    if (!active)
        return 0;
    int found = 0;
    for (int i = 0; i < known && !found; i++)
        found = (size_t)caller >= ranges[i].from && (size_t)caller < ranges[i].to;
    if (!found)
        return 0;
    long number = ++counted;
    if (number < first || number > last)
        return 0;
    errno = ENOMEM;
    return 1;
}

/* Returns how many address ranges the named library has: 0 if it is not loaded. */
int allocations_fail(long from, long to, const char *name) {
    known = 0;
    dl_iterate_phdr(note, (void *)name);
    first = from, last = to;
    counted = 0;
    active = 1;
    return known;
}

long allocations_end(void) {
    active = 0;
    return counted;
}

void *malloc(size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size); }

void *calloc(size_t count, size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
    return size && fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}
