/* SPDX-License-Identifier: Apache-2.0
 *
 * Versions of names, and aliases (docs/weights.md): "w/llama@7" is version 7 of "w/llama", a set of
 * segments that others see all at once, and "w/llama@latest" is an alias of the newest one.
 * Segments of a version are created, opened, published and removed as others are, by names such as
 * "w/llama@7" or "w/llama@7/rank0". The rules at the top of gpushm/gpushm.h apply. */
#ifndef GPUSHM_VERSIONS_H
#define GPUSHM_VERSIONS_H

#include "gpushm/gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN: this is C */

/* The largest number of a version, 2^53. */
#define GPUSHM_MAX_VERSION 9007199254740992ULL

typedef struct gpushm_version_options {
  size_t struct_size;
  /* Higher than the numbers of all versions of the name so far; 0: the next one. */
  uint64_t number;
  /* The names of its parts, such as "rank0"; none: one part, the segment "NAME@NUMBER" itself. */
  const gpushm_string* parts;
  size_t part_count;
  /* Published versions of this name that stay although no process has them open and no alias refers
   * to them: the newest ones, at most `keep_versions` and `keep_bytes` (0: no limit of bytes),
   * where `has_keep_versions` is true; else 1. */
  uint32_t keep_versions;
  bool has_keep_versions;
  uint64_t keep_bytes;
} gpushm_version_options;

/* Begins the next version of a name. Its parts are then created by their names ("NAME@NUMBER", or
 * "NAME@NUMBER/PART"), by this or by other processes of the same uid in the same pod or container.
 * Nobody else sees any of them before the last one is published, which publishes the version and
 * moves the alias "latest" to it. If the process that has begun it, or that has created one of its
 * parts, ends before, all of it is removed. Memory of the host and of cuda-vmm only. `options` may
 * be NULL. A round trip to the broker. Fails with invalid_argument, already_exists (a segment has
 * the bare name), permission_denied (another uid owns the versions of this name), share_exceeded,
 * too_many_segments, unsupported_version (an older broker), broker_gone, timed_out. */
GPUSHM_API gpushm_errc gpushm_client_create_version(gpushm_client* client,
                                                    gpushm_string name,
                                                    const gpushm_version_options* options,
                                                    uint64_t* number);

/* Lets "NAME@latest" refer to the newest other published version; the version stays for those who
 * have it open, and under its number until nothing keeps it. Allowed as
 * gpushm_client_create_version. Fails with no_such_segment, permission_denied. */
GPUSHM_API gpushm_errc gpushm_client_withdraw_version(gpushm_client* client,
                                                      gpushm_string name,
                                                      uint64_t number);

/* Lets "NAME@ALIAS" refer to a published version, at once for all who open it from then on; those
 * who have opened it keep what they have. The alias is created if there is none. `alias`: a
 * lower-case letter and up to 31 lower-case letters, digits and hyphens, not "latest". Allowed as
 * gpushm_client_create_version. Fails with no_such_segment, invalid_argument (not published),
 * permission_denied, share_exceeded. */
GPUSHM_API gpushm_errc gpushm_client_move_alias(gpushm_client* client,
                                                gpushm_string name,
                                                gpushm_string alias,
                                                uint64_t number);
/* Fails with no_such_segment, invalid_argument ("latest"), permission_denied. */
GPUSHM_API gpushm_errc gpushm_client_remove_alias(gpushm_client* client,
                                                  gpushm_string name,
                                                  gpushm_string alias);

/* The number of the published version that a name refers to: "NAME@ALIAS", "NAME@NUMBER", or
 * "NAME", which means "NAME@latest". Processes that open parts of one version resolve it once, and
 * open "NAME@NUMBER/PART". Fails with no_such_segment, which says which ones exist. */
GPUSHM_API gpushm_errc gpushm_client_resolve_version(gpushm_client* client,
                                                     gpushm_string name,
                                                     uint64_t* number);

typedef struct gpushm_version_info {
  size_t struct_size;
  uint64_t number;
  uint64_t bytes; /* allocated for its segments */
  uint32_t held;  /* its segments that some process has open */
  gpushm_version_state state;
  bool withdrawn;
  gpushm_string aliases; /* separated by commas; owned by the list */
} gpushm_version_info;

typedef struct gpushm_version_list gpushm_version_list;

/* The versions of a name, the highest number first; an empty list if there are none. */
GPUSHM_API gpushm_errc gpushm_client_list_versions(gpushm_client* client,
                                                   gpushm_string name,
                                                   gpushm_version_list** list);
GPUSHM_API size_t gpushm_version_list_size(const gpushm_version_list* list);
/* Fails with invalid_argument if `index` is not below the list's size. */
GPUSHM_API gpushm_errc gpushm_version_list_get(const gpushm_version_list* list,
                                               size_t index,
                                               gpushm_version_info* info);
GPUSHM_API void gpushm_version_list_free(gpushm_version_list* list);

/* NOLINTEND */

#ifdef __cplusplus
}
#endif

#endif
