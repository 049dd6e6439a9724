/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows: addresses at which a process sees the memory of one segment after the other
 * (docs/adr/0049-windows.md). An engine that has captured its addresses in CUDA graphs gets new
 * weights at them without a copy. The rules at the top of gpushm/gpushm.h apply. */
#ifndef GPUSHM_WINDOW_H
#define GPUSHM_WINDOW_H

#include "gpushm/gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN: this is C */

/* Reserved addresses, and the memory of one segment mapped there. It has an open of that segment of
 * its own: the memory and its lease exist as long as the window shows it. Release with
 * gpushm_window_close. */
typedef struct gpushm_window gpushm_window;

/* Makes a window that shows `segment`, for the same access and by the same device; the segment
 * stays mapped at its own address, too, and may be closed. For the backends host and cuda_vmm. The
 * window keeps descriptors of the segment's chunks, which count like those of suspended segments
 * (docs/sharing.md): twice their number during a change.
 *
 * While a window shows a segment, gpushm_segment_suspend of it works with GPUSHM_SUSPEND_KEEP only,
 * and does not change the window. Blocks for round trips to the broker unless this process has kept
 * the descriptors, and while the driver maps. Synchronizes no stream.
 *
 * Fails with not_supported (another backend), invalid_argument (the segment is suspended, or was
 * imported without a broker), too_many_descriptors, out_of_memory, broker_gone, timed_out,
 * driver_error, system_error, forked. */
GPUSHM_API gpushm_errc gpushm_window_create(const gpushm_segment* segment, gpushm_window** window);
/* Returns another handle to the same window, for libraries that keep memory for as long as they use
 * it. Never fails. */
GPUSHM_API gpushm_window* gpushm_window_dup(const gpushm_window* window);
/* With the last handle the memory is unmapped, the addresses are free for others, and the use of
 * the segment ends. Does not wait for GPU work that still uses the memory: synchronize first. May
 * be called on any thread. */
GPUSHM_API void gpushm_window_close(gpushm_window* window);

/* Unmaps the memory of the segment that the window shows, maps that of `segment` at the same
 * addresses, and then ends the window's use of the former one. No effect if it shows `segment`
 * already. `segment` may be closed afterwards. It must have the size, the chunks, the device and
 * the access of the first one, and may belong to another client.
 *
 * No CPU, GPU or stream may use the memory during the call. Only work of the legacy default stream
 * of the window's GPU, and captures that are ordered with it, are detected (segment_busy);
 * synchronize all others first, and wait for launched graphs. Graphs that were captured before
 * contain addresses only: they use the new memory from their next launch on. What has registered
 * the addresses uses the former memory, or fails: unregister them before the call, and register
 * them again afterwards. That includes cudaHostRegister, NCCL, RDMA, and access that the program
 * has given other GPUs with cuMemSetAccess. The driver has no IPC handles of a window's memory, and
 * other processes have no part in it: each changes its own windows.
 *
 * After a failure the window shows the former segment, as before. If even that cannot be mapped
 * again, the state of the window is GPUSHM_SEGMENT_SUSPENDED: nothing is mapped, every access fails
 * as to unmapped memory, and another call may succeed, also with the former segment
 * (gpushm_window_segment). Waits for other threads that change the same window. Does not wait for
 * GPU work; blocks as gpushm_window_create.
 *
 * Fails with segment_busy, size_mismatch (another size, or other chunks: nothing has changed),
 * invalid_argument (another device or access, suspended, or imported without a broker: nothing has
 * changed), not_supported, too_many_descriptors, out_of_memory, broker_gone, timed_out,
 * driver_error, system_error, forked. */
GPUSHM_API gpushm_errc gpushm_window_show(gpushm_window* window, const gpushm_segment* segment);

/* Returns the segment that the window shows, as a new handle with a use of its own
 * (gpushm_segment_close): its name, generation, metadata and state. During a change, the former
 * one; while nothing is mapped, the one that was last shown. Does not block. Fails with forked. */
GPUSHM_API gpushm_errc gpushm_window_segment(const gpushm_window* window, gpushm_segment** segment);
/* The state of the segment that the window shows; GPUSHM_SEGMENT_SUSPENDED while nothing is mapped,
 * GPUSHM_SEGMENT_UNKNOWN in a forked child. Reads shared memory only: no system call. */
GPUSHM_API gpushm_segment_state gpushm_window_state(const gpushm_window* window);

/* The first byte: a device pointer (also a CUdeviceptr) on a GPU, a CPU pointer on the host. Valid
 * as long as the handle exists; never changes. */
GPUSHM_API const void* gpushm_window_data(const gpushm_window* window);
/* As gpushm_window_data; NULL if the segments are mapped for reading only. */
GPUSHM_API void* gpushm_window_mutable_data(const gpushm_window* window);
/* That of each of its segments. */
GPUSHM_API uint64_t gpushm_window_size_bytes(const gpushm_window* window);
/* The device that uses the memory, as CUDA numbers it in this process; -1 for the host. */
GPUSHM_API int32_t gpushm_window_ordinal(const gpushm_window* window);

/* NOLINTEND */

#ifdef __cplusplus
}
#endif

#endif
