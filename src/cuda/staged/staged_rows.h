/*
 * What the two passes of the staged path share: windows of rows, where their buffers stand, launches that move rows, gate+up.
 *
 * The host never knows how many rows there are: it enqueues the launches of every window that the worst case can have, and the kernels look at the
 * schedule's head and leave early. A window is a lap of the ring, cut where kept rows end, so that its rows stand together in every buffer.
 */
#ifndef MOK_CUDA_STAGED_ROWS_H
#define MOK_CUDA_STAGED_ROWS_H

#include "cuda/gemm/gemm.h"
#include "cuda/rank_pass.h"

/* Padded rows first .. first + rows - 1. */
struct mok_window {
    int64_t first;
    int64_t rows;
    int64_t lap;
    int is_kept; /* x, g, u stand in the saved object */
};

/* The next window behind `window`; 0 when there is none. Start with all zeros. */
int mok_cuda_next_window(const struct mok_cuda_pass *pass, struct mok_window *window);

/* Address of the window's first row in a ring buffer, in a buffer of the saved object, and of its x in either. */
char *mok_cuda_in_ring(const struct mok_cuda_pass *pass, const struct mok_window *window, int64_t offset, int64_t row_bytes);
char *mok_cuda_in_saved(const struct mok_window *window, char *base, int64_t row_bytes);
char *mok_cuda_window_x(const struct mok_cuda_pass *pass, const struct mok_window *window);

/* Rows of a window, and of the shared expert: one expert whose rows are the tokens. */
struct mok_gemm_rows mok_cuda_routed_rows(const struct mok_cuda_pass *pass, const struct mok_window *window);
struct mok_gemm_rows mok_cuda_token_rows(const struct mok_cuda_pass *pass);
struct mok_gemm_launch mok_cuda_gemm_limits(const struct mok_cuda_pass *pass);

/* PULL or PUSH of a window between `local` and every source's region at remote_off. */
struct mok_cuda_move_args mok_cuda_move_window(const struct mok_cuda_pass *pass, const struct mok_window *window, char *local, int64_t remote_off);
mok_status mok_cuda_move(const struct mok_cuda_pass *pass, const struct mok_window *window, enum mok_cuda_kernel_id id, struct mok_cuda_move_args *args);

/* kind: mok_task_kind, for the trace. */
mok_status mok_cuda_gate_up(const struct mok_cuda_pass *pass, const struct mok_gate_up_args *args, int32_t kind, int64_t index);
/* gate+up of the shared expert. h NULL: g and u alone; g NULL: h alone. */
struct mok_gate_up_args mok_cuda_shared_gate_up(const struct mok_cuda_pass *pass, const void *x, void *h, void *g, void *u);

#endif
