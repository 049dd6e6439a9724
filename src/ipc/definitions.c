// SPDX-License-Identifier: Apache-2.0
#include "ipc/definitions.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>

// This file calls no function of the C library but dl_iterate_phdr (and memset, where a compiler
// inserts it), and ipc_c_library_definition not even that: the run-time libraries of sanitizers
// replace many, look the replaced ones up by dlsym, and crash if one is called meanwhile.
static bool is_equal(const char* text, const char* other) {
  for (; *text == *other && *text != '\0'; ++text, ++other) {
  }
  return *text == *other;
}

static bool begins_with(const char* text, const char* prefix) {
  for (; *prefix != '\0' && *text == *prefix; ++text, ++prefix) {
  }
  return *prefix == '\0';
}

static void copy_if_fits(char* target, size_t size, const char* text) {
  size_t length = 0;
  while (text[length] != '\0') {
    ++length;
  }
  for (size_t each = 0; length < size && each <= length; ++each) {
    target[each] = text[each];
  }
}

struct search {
  const char* name;    // of the symbol
  const char* prefix;  // of the object's file name; NULL: objects after this library
  void* address;       // that the object contains; NULL: any
  bool is_after_own;
  void* found;
  char* path;
  size_t path_size;
};

static bool contains(const struct dl_phdr_info* object, const void* address) {
  const uintptr_t wanted = (uintptr_t)address;
  for (int each = 0; each < object->dlpi_phnum; ++each) {
    const ElfW(Phdr)* const part = &object->dlpi_phdr[each];
    const uintptr_t begin = object->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_LOAD && wanted >= begin && wanted < begin + part->p_memsz) {
      return true;
    }
  }
  return false;
}

static const char* file_name(const struct dl_phdr_info* object) {
  const char* const path = object->dlpi_name == NULL ? "" : object->dlpi_name;
  const char* name = path;
  for (const char* each = path; *each != '\0'; ++each) {
    name = *each == '/' ? each + 1 : name;
  }
  return name;
}

struct symbols {
  const ElfW(Sym) * table;
  const char* names;
  const uint32_t* gnu_hash;
  const ElfW(Versym) * versions;
};

// The C library relocates the addresses in its own .dynamic and those of other objects, but not
// that of the kernel's object.
static const void* relocated(ElfW(Addr) base, ElfW(Addr) address) {
  return (const void*)(address < base ? base + address : address);
}

static bool read_dynamic(ElfW(Addr) base, const ElfW(Dyn) * entry, struct symbols* symbols) {
  *symbols = (struct symbols){.table = NULL};
  for (; entry != NULL && entry->d_tag != DT_NULL; ++entry) {
    const void* const address = relocated(base, entry->d_un.d_ptr);
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols->table = address;
        break;
      case DT_STRTAB:
        symbols->names = address;
        break;
      case DT_GNU_HASH:
        symbols->gnu_hash = address;
        break;
      case DT_VERSYM:
        symbols->versions = address;
        break;
      default:
        break;
    }
  }
  return symbols->table != NULL && symbols->names != NULL && symbols->gnu_hash != NULL;
}

// The hash table of the GNU ABI: number of buckets, index of the first hashed symbol, words and
// shift of the Bloom filter, filter, buckets, chains.
static void* find_in_object(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char* name) {
  struct symbols symbols;
  if (!read_dynamic(base, dynamic, &symbols) || symbols.gnu_hash[0] == 0) {
    return NULL;
  }
  uint32_t hash = 5381;
  for (const char* letter = name; *letter != '\0'; ++letter) {
    hash = hash * 33 + (unsigned char)*letter;
  }
  const uint32_t buckets = symbols.gnu_hash[0];
  const uint32_t first = symbols.gnu_hash[1];
  const size_t filter_bytes = symbols.gnu_hash[2] * sizeof(ElfW(Addr));
  const uint32_t* const bucket = symbols.gnu_hash + 4 + filter_bytes / sizeof(uint32_t);
  uint32_t index = bucket[hash % buckets];
  if (index < first) {
    return NULL;
  }
  const uint32_t* const chain = bucket + buckets;
  void* result = NULL;
  for (;; ++index) {
    const uint32_t stored = chain[index - first];
    const ElfW(Sym)* const symbol = &symbols.table[index];
    if ((stored | 1U) == (hash | 1U) && symbol->st_shndx != SHN_UNDEF &&
        ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
        is_equal(symbols.names + symbol->st_name, name)) {
      result = (void*)(base + symbol->st_value);
      const bool is_default_version =
          symbols.versions == NULL || (symbols.versions[index] & 0x8000U) == 0;
      if (is_default_version) {
        return result;
      }
    }
    if ((stored & 1U) != 0) {
      return result;
    }
  }
}

static const ElfW(Dyn) * dynamic_of(const struct dl_phdr_info* object) {
  for (int each = 0; each < object->dlpi_phnum; ++each) {
    if (object->dlpi_phdr[each].p_type == PT_DYNAMIC) {
      return (const ElfW(Dyn)*)(object->dlpi_addr + object->dlpi_phdr[each].p_vaddr);
    }
  }
  return NULL;
}

static int look_at(struct dl_phdr_info* object, size_t size, void* context) {
  (void)size;
  struct search* const search = context;
  if (search->address != NULL) {
    if (!contains(object, search->address)) {
      return 0;
    }
    search->found = search->address;
    const char* const path = object->dlpi_name == NULL ? "" : object->dlpi_name;
    copy_if_fits(search->path, search->path_size, path);
    return search->prefix == NULL || begins_with(file_name(object), search->prefix) ? 1 : -1;
  }
  if (search->prefix == NULL) {
    if (!search->is_after_own) {
      search->is_after_own = contains(object, (const void*)&look_at);
      return 0;
    }
  } else if (!begins_with(file_name(object), search->prefix)) {
    return 0;
  }
  search->found = find_in_object(object->dlpi_addr, dynamic_of(object), search->name);
  return search->found != NULL;
}

void* ipc_next_definition(const char* name) {
  struct search search = {.name = name};
  dl_iterate_phdr(look_at, &search);
  return search.found;
}

void* ipc_c_library_definition(const char* name) {
  bool is_after_own = false;
  // The list in which debuggers find the objects. Those of the program's start come first in it,
  // and stay.
  for (const struct link_map* object = _r_debug.r_map; object != NULL; object = object->l_next) {
    void* const found = is_after_own ? find_in_object(object->l_addr, object->l_ld, name) : NULL;
    if (found != NULL) {
      return found;
    }
    is_after_own = is_after_own || object->l_ld == _DYNAMIC;
  }
  return NULL;
}

void* ipc_driver_definition(const char* name) {
  struct search search = {.name = name, .prefix = "libcuda.so"};
  dl_iterate_phdr(look_at, &search);
  return search.found;
}

bool ipc_is_in_object(void* address, const char* prefix) {
  struct search search = {.prefix = prefix, .address = address};
  return dl_iterate_phdr(look_at, &search) == 1;
}

bool ipc_own_path(char* path, size_t size) {
  path[0] = '\0';
  struct search search = {.address = (void*)&look_at, .path = path, .path_size = size};
  dl_iterate_phdr(look_at, &search);
  return path[0] != '\0';
}
