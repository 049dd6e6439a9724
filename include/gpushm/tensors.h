/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors in segments: model weights that are loaded once and shared (docs/tensors.md). The rules
 * at the top of gpushm/gpushm.h apply. */
#ifndef GPUSHM_TENSORS_H
#define GPUSHM_TENSORS_H

#include "gpushm/gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN: this is C */

/* How far a load is. */
typedef struct gpushm_load_progress {
  size_t struct_size; /* of the library that calls: later members may be missing */
  uint64_t bytes;     /* read, copied and hashed */
  uint64_t total_bytes;
  uint64_t resumed_bytes; /* of `bytes`: read by previous loaders */
  bool is_here;           /* this process reads; otherwise it waits for a process that does */
} gpushm_load_progress;

/* How files are read. */
typedef enum gpushm_reading GPUSHM_INT {
  GPUSHM_READING_AUTOMATIC = 0, /* direct if most of a file is not in the page cache */
  GPUSHM_READING_CACHED = 1,    /* through the page cache */
  GPUSHM_READING_DIRECT = 2     /* O_DIRECT, where the file system has it */
} gpushm_reading;

/* How a load finds out whether changed files, or other files, have the contents of a segment. */
typedef enum gpushm_verify GPUSHM_INT {
  GPUSHM_VERIFY_AUTOMATIC = 0, /* by their stamps; where those differ, by all bytes, once */
  GPUSHM_VERIFY_FULL = 1       /* by all bytes in each load, even where the stamps are equal */
} gpushm_verify;

/* A part of one dimension of tensors, such as the part of one rank of a tensor-parallel layer. */
typedef struct gpushm_tensor_slice {
  size_t struct_size;
  gpushm_string name; /* of a tensor, or a pattern, as gpushm_load_options.tensors */
  int32_t dimension;  /* negative: counted from behind the last one */
  uint64_t begin;     /* from this element */
  uint64_t end;       /* up to this element, without it; more than `begin` */
  /* 0, or the number of equal parts that the dimension is divided into: `begin` and `end` then
   * count parts, and rank r of n wants {begin r, end r + 1, parts n}. */
  uint64_t parts;
} gpushm_tensor_slice;

typedef struct gpushm_load_options {
  size_t struct_size;
  gpushm_string device; /* as in gpushm_create_options; empty: "auto" */
  uint32_t threads;     /* reading threads, 1 to 64; 0: one for each CPU, 8 to 16 */
  gpushm_reading reading;
  gpushm_verify verify;
  /* If the name has another model, or its files have changed, the new one is loaded beside it,
   * instead of GPUSHM_ERRC_ALREADY_EXISTS, and gets the name when it is complete: readers of the
   * name find one of the two, never none and never a part. Users of the previous model keep it. If
   * the load fails or its process dies, the previous model stays. Until then there must be memory
   * for both. No effect if the name already has this model. */
  bool replace;
  /* The tensors to load; if there is none, all. Names, or patterns with `*` (also of dots and
   * slashes), `?`, `[a-z]` and `[!a-z]`; a tensor of exactly that name is not a pattern's. Each
   * must match a tensor of the files, and be given once. Of files without such a tensor only the
   * headers are read. */
  const gpushm_string* tensors;
  size_t tensor_count;
  /* Slices of the tensors; other dimensions are whole. Slices of one name and dimension are joined
   * in this order: at most 1024 a tensor, without overlaps. The loaded tensors are contiguous. Each
   * must match a tensor of the files, but not one of `tensors`. All must consist of whole bytes.
   * `struct_size` must be equal in all. */
  const gpushm_tensor_slice* slices;
  size_t slice_count;
  const gpushm_stop* stop;
  /* Called ten times a second, by the calling thread. May be NULL. */
  void (*report)(const gpushm_load_progress* progress, void* context);
  void* report_context;
} gpushm_load_options;

/* Loads a model into a persistent segment, once for all processes that call this at the same time:
 * one reads, the others wait. If it dies, one of the others continues after its fence, from the
 * last piece that was copied and hashed; if no process waits, the next call does. `paths`:
 * safetensors files, an index (*.index.json), or a folder of a model. Returns the segment, open for
 * reading, when it is complete; at once if it is and the files' stamps (size, mtime, ctime, inode)
 * are those of the files that it was loaded from: then no file is opened. Where stamps differ, all
 * files are read and hashed; if their contents are the same, the stamps are added to the segment's,
 * which needs the right to write it. A file that changes meanwhile ends the load. If the broker
 * ends without a takeover, continues with the next broker, for which it waits at most 30 s. A name
 * has one selection of `tensors` and `slices`: other selections need other names. A part of a
 * version ("NAME@NUMBER/PART", gpushm/versions.h) is loaded by one process, without successors: it
 * is seen with the version, and ends with the process before that; its loader gets it open for
 * reading and writing. Blocks at most `timeout_ms` (GPUSHM_DEFAULT_TIMEOUT: an hour; 0: returns
 * only a complete segment); several threads read. Uses 8 MiB of pinned memory a thread on GPUs.
 * GPUSHM_ERRC_INVALID_FILE, GPUSHM_ERRC_INVALID_ARGUMENT (`tensors` or `slices` that the files do
 * not have: nothing is changed), GPUSHM_ERRC_ALREADY_EXISTS (the name has another model or
 * selection, other contents of these files, or something else), GPUSHM_ERRC_TIMED_OUT,
 * GPUSHM_ERRC_CANCELLED, and as gpushm_client_create and gpushm_client_open. */
GPUSHM_API gpushm_errc gpushm_tensors_load(gpushm_client* client,
                                           gpushm_string name,
                                           const gpushm_string* paths,
                                           size_t count,
                                           const gpushm_load_options* options,
                                           int64_t timeout_ms,
                                           gpushm_segment** segment);
/* Opens a segment with tensors for reading. Blocks until its name exists and it is complete, at
 * most `timeout_ms` (GPUSHM_DEFAULT_TIMEOUT: 0), even across brokers. Does not read the table:
 * gpushm_tensors_table_read checks it. GPUSHM_ERRC_INVALID_ARGUMENT (a segment without tensors),
 * GPUSHM_ERRC_UNSUPPORTED_VERSION (of another version of gpushm), GPUSHM_ERRC_TIMED_OUT (it is
 * still loaded, or its loader has died), and as gpushm_client_open. */
GPUSHM_API gpushm_errc gpushm_tensors_open(gpushm_client* client,
                                           gpushm_string name,
                                           const gpushm_open_options* options,
                                           int64_t timeout_ms,
                                           gpushm_segment** segment);

/* The table of the tensors of a segment (docs/tensors.md). Immutable: any thread may use it.
 * Release with gpushm_tensors_table_free. */
typedef struct gpushm_tensors_table gpushm_tensors_table;
/* Reads and checks the table: all tensors are within the segment. Blocks while it is copied from a
 * GPU. GPUSHM_ERRC_INVALID_ARGUMENT (a segment without tensors, or not complete),
 * GPUSHM_ERRC_PROTOCOL_ERROR (damaged, or hostile), GPUSHM_ERRC_UNSUPPORTED_VERSION (of another
 * version of gpushm). */
GPUSHM_API gpushm_errc gpushm_tensors_table_read(const gpushm_segment* segment,
                                                 gpushm_tensors_table** table);
/* The table as JSON in UTF-8: as the header of a safetensors file, and a superset of it
 * (docs/tensors.md). For people and other programs; made by the first call. Valid as long as the
 * table is. Empty if there is no memory for it. */
GPUSHM_API gpushm_string gpushm_tensors_table_text(const gpushm_tensors_table* table);

/* A tensor of a table. Texts and arrays are valid as long as the table is. */
typedef struct gpushm_tensor {
  size_t struct_size;
  gpushm_string name;
  gpushm_string dtype;           /* as safetensors names element types, such as "BF16" */
  gpushm_string framework_dtype; /* what a framework calls it, if that differs; may be empty */
  gpushm_string hash;            /* 16 hexadecimal digits (docs/tensors.md); empty: unknown */
  uint64_t offset_bytes;         /* from the segment's first byte */
  uint64_t size_bytes;
  size_t rank; /* the number of dimensions */
  const uint64_t* shape;
  const int64_t* strides; /* in elements; NULL: as in C, the last dimension is contiguous */
} gpushm_tensor;
/* The number of tensors in a table. */
GPUSHM_API size_t gpushm_tensors_table_count(const gpushm_tensors_table* table);
/* The tensor number `index`, in the order of the tensors' places, then of their ends.
 * GPUSHM_ERRC_INVALID_ARGUMENT: not below the count. */
GPUSHM_API gpushm_errc gpushm_tensors_table_get(const gpushm_tensors_table* table,
                                                size_t index,
                                                gpushm_tensor* tensor);
/* Finds a tensor by its name, in a time that grows with the logarithm of the count. Returns false
 * if there is none, and `index` is unchanged then. `index` may be NULL. */
GPUSHM_API bool gpushm_tensors_table_find(const gpushm_tensors_table* table,
                                          gpushm_string name,
                                          size_t* index);
/* The number of texts in the table's metadata ("__metadata__" of a safetensors file). */
GPUSHM_API size_t gpushm_tensors_table_metadata_count(const gpushm_tensors_table* table);
/* The text number `index` of the metadata, in the order of keys. Valid as long as the table is.
 * GPUSHM_ERRC_INVALID_ARGUMENT: not below the count. */
GPUSHM_API gpushm_errc gpushm_tensors_table_metadata_get(const gpushm_tensors_table* table,
                                                         size_t index,
                                                         gpushm_string* key,
                                                         gpushm_string* value);
GPUSHM_API void gpushm_tensors_table_free(gpushm_tensors_table* table);

/* The size of a segment for tensors with this table: JSON as that of gpushm_tensors_table_text, of
 * which other keys are left out. The tensors' places ("data_offsets") are from the segment's first
 * byte, at multiples of 256. GPUSHM_ERRC_INVALID_ARGUMENT: not a valid table. */
GPUSHM_API gpushm_errc gpushm_tensors_size(gpushm_string table, uint64_t* size_bytes);
/* Adds the table to a segment of that size that this process has created and filled, and publishes
 * it. Finish the writes of streams first. As gpushm_segment_publish; GPUSHM_ERRC_INVALID_ARGUMENT,
 * GPUSHM_ERRC_SIZE_MISMATCH. */
GPUSHM_API gpushm_errc gpushm_tensors_publish(gpushm_segment* segment, gpushm_string table);

/* NOLINTEND */

#ifdef __cplusplus
}
#endif

#endif
