// SPDX-License-Identifier: Apache-2.0
// The static unwinder of GCC 12 finds the tables of a code address with this function of
// glibc 2.35.
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

struct search {
  uintptr_t address;
  struct dl_find_object* out;
};

static int look_at(struct dl_phdr_info* object, size_t size, void* data) {
  (void)size;
  const struct search* const search = data;
  const ElfW(Phdr)* tables = NULL;
  int contains = 0;
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
  for (size_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const header = &object->dlpi_phdr[i];
    if (header->p_type == PT_GNU_EH_FRAME) {
      tables = header;
    } else if (header->p_type == PT_LOAD) {
      const uintptr_t from = object->dlpi_addr + header->p_vaddr;
      const uintptr_t to = from + header->p_memsz;
      contains = contains || (search->address >= from && search->address < to);
      begin = from < begin ? from : begin;
      end = to > end ? to : end;
    }
  }
  if (!contains) {
    return 0;
  }
  if (tables == NULL) {
    return -1;
  }
  memset(search->out, 0, sizeof *search->out);
  search->out->dlfo_map_start = (void*)begin;
  search->out->dlfo_map_end = (void*)end;
  search->out->dlfo_eh_frame = (void*)(object->dlpi_addr + tables->p_vaddr);
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* out) {
  struct search search = {(uintptr_t)address, out};
  return dl_iterate_phdr(look_at, &search) == 1 ? 0 : -1;
}
