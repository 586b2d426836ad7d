/*
 * libmok: one mixture-of-experts (MoE) layer, forward and backward, across the ranks of an expert-parallel group.
 *
 * Read from top to bottom: words, status, a first call, then the objects in the order in which a program makes them:
 * group -> layer -> schedule -> (saved) -> forward -> backward.
 *
 * Words. R ranks share E experts; rank r owns experts floor(r*E/R) .. floor((r+1)*E/R)-1 (its *local* experts, El of them,
 * perhaps none). A rank brings T tokens of H values (T may differ per rank and per call, 0 <= T <= T_max). The caller's router chose K
 * experts for each token; one (token, k) choice is a *route*, with an int32 expert id (-1 = not routed) and an fp32 weight. A token may
 * name one expert several times (each is a route of its own), so K may be larger than E.
 * An expert is a SwiGLU feed-forward network of width I:  y = Wd * act(Wg x, Wu x). A *row* is one route at the rank that owns its expert.
 *
 * Streams. Every call that works on tensors enqueues its work on `stream` and returns; the host never waits for a count that
 * the device computes. With the CUDA backend `stream` is a cudaStream_t of the group's device and every tensor is device memory. Each call may
 * take another stream: its work waits on the device for that of the group's call before (captured calls: see Graphs). With the CPU backend
 * `stream` must be NULL, tensors are host memory, and the calls of one group run in order behind the caller's back. In both cases a tensor
 * belongs to the library from the call until the work is done (mok_group_wait, or the caller's own stream synchronisation); option structs
 * are copied. That holds after a failure too: queued work then ends by itself, see mok_group_wait.
 *
 * Graphs (CUDA). mok_schedule_build, mok_forward and mok_backward may be captured. The library orders captured calls neither among themselves
 * nor with other calls: the graph must, and launches of a group's graphs must be ordered with each other and with its other calls (one stream
 * does), alike on all ranks. What the host knows (a saved object free or filled, a schedule built anew, num_tokens) is checked and changed by
 * the call that is captured; a replay neither looks at it nor changes it. A captured forward may be replayed without its backward: each replay
 * fills the saved object anew. Group, layer, schedule and tensors must live until the last replay is done, and mok_group_destroy and
 * mok_group_trace do not know of replays: synchronise their stream before.
 *
 * Collective calls must be made by every rank of the group, in the same order. mok_group_create blocks until all ranks have come (or
 * peer_timeout_ms is over); mok_schedule_build, mok_forward and mok_backward are collective but return at once.
 *
 * Threads. Calls on different groups may run side by side. Calls on one group are serialised by a lock inside, so two threads are
 * safe, but the *order* of the collective calls must still be the same on all ranks: that order is the caller's to keep.
 * mok_group_status, mok_group_wait, mok_group_abort and mok_group_choice take no lock: any thread may call them while another is inside a call.
 *
 * Fork. A group and all that is made from it belong to the process that created the group. In a child of fork every call with one of them
 * is refused (ARGUMENT), mok_layer_destroy and mok_schedule_destroy do nothing, and the memory goes with the child; with the CPU backend
 * the child may make groups of its own.
 *
 * Refusals. Arguments are checked before anything happens: a refused call has written and enqueued nothing, the group stays usable, and
 * mok_last_error names argument, value and rule. A group that has failed (mok_group_status is not MOK_OK) says so in every later call, but for
 * those that look at the host's memory alone: mok_group_saved, mok_saved_input, mok_saved_release, mok_group_trace_take and mok_group_choice.
 * Structs that begin with struct_size are filled by their _init function; another size than that of this header is refused.
 *
 * Log. MOK_LOG=1 in the environment prints every failure to stderr, MOK_LOG=2 also what each group chose for itself. Without it there is one
 * kind of warning, which MOK_LOG=0 turns off: that a MOK_ variable looks like one of the library's and is none.
 *
 * Alignment. Every tensor pointer in mok_matrices, mok_schedule_build, mok_forward_args and mok_backward_args is a multiple of 16 bytes, every
 * stride a multiple of 8 elements. The host helpers (mok_router_*, mok_mxfp8_*) need only the alignment of the element type. Where a rank has
 * no tokens (T = 0), pointers to per-token tensors are not looked at and may be NULL.
 *
 * The arithmetic, with every rounding point, is written in docs/numerics.md.
 */
#ifndef MOK_MOK_H
#define MOK_MOK_H

#include <stddef.h>
#include <stdint.h>

#include <mok/version.h>

#if defined(__GNUC__) || defined(__clang__)
#define MOK_MUST_USE __attribute__((warn_unused_result))
#define MOK_EXPORT __attribute__((visibility("default")))
#else
#define MOK_MUST_USE
#define MOK_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ------------------------------------------------------------------------------------------------------------- */

/* Values are pinned. They are grouped by what the caller can do. */
typedef enum mok_status {
    MOK_OK = 0,

    /* 1..19: fix the call. Nothing was written or enqueued; the group stays usable (but for MOK_ERR_DISAGREE in a pass). */
    MOK_ERR_ARGUMENT = 1,  /* an argument breaks a rule; the message names argument, value and rule */
    MOK_ERR_MISMATCH = 2,  /* objects that do not belong together (layer, schedule, saved, group) */
    MOK_ERR_DISAGREE = 3,  /* the ranks of a group gave different values for something that must be the same. At creation: nothing is left
                              behind. In a pass (see mok_forward): the group has failed on every rank, give it up */

    /* 20..39: find resources. Nothing was written or enqueued. */
    MOK_ERR_MEMORY = 20,      /* an allocation failed */
    MOK_ERR_NO_DEVICE = 21,   /* no usable GPU or no driver */
    MOK_ERR_UNSUPPORTED = 22, /* known, but not possible here (say: no peer access between two GPUs) */
    MOK_ERR_NOT_BUILT = 23,   /* this build of the library has no such backend or peer */
    MOK_ERR_IO = 24,          /* a file could not be read or written, or its content is not what it says (command-line tool) */

    /* 40..59: give up the group. Destroy it (destroy works and is bounded) and create a new one. */
    MOK_ERR_TIMEOUT = 40, /* this rank waited longer than its limit; see mok_fault */
    MOK_ERR_ABORTED = 41, /* a peer gave up, or has left where this rank waits for it, or the group was aborted earlier */
    MOK_ERR_DEVICE = 42,  /* the GPU or its driver reported an error */

    /* 60..79: our bug. Please report the message. */
    MOK_ERR_INTERNAL = 60
} mok_status;

/* Short fixed name of a status, e.g. "MOK_ERR_TIMEOUT". Never NULL; unknown values give "MOK_ERR_UNKNOWN". Any thread. */
MOK_EXPORT const char *mok_status_name(mok_status status);

/* One sentence on the last failure in the calling thread: argument, value, rule, rank. "" when there was none. The pointer stays
 * valid until the next failing call of this thread. */
MOK_EXPORT const char *mok_last_error(void);

/* Version of the library that is loaded, MOK_VERSION_MAJOR * 10000 + MINOR * 100 + PATCH; compare with MOK_VERSION. */
MOK_EXPORT int mok_version(void);

/* ---- types -------------------------------------------------------------------------------------------------------------- */

typedef enum mok_dtype {
    MOK_DTYPE_NONE = 0,
    MOK_DTYPE_BF16 = 1,
    MOK_DTYPE_FP32 = 2
} mok_dtype;

/* Format of the GEMM operands of routed experts. Only MOK_FORMAT_BF16 can be created now; the others are reserved. */
typedef enum mok_format {
    MOK_FORMAT_BF16 = 0,
    MOK_FORMAT_MXFP8 = 1,     /* reserved: e4m3, 32-element blocks, E8M0 scales (OCP MX v1.0) */
    MOK_FORMAT_FP8_BLOCK = 2  /* reserved: e4m3, 1x128 activations, 128x128 weights */
} mok_format;

typedef enum mok_backend { MOK_BACKEND_AUTO = 0, MOK_BACKEND_CPU = 1, MOK_BACKEND_CUDA = 2 } mok_backend;

/* How ranks reach each other's memory. */
typedef enum mok_peer_kind {
    MOK_PEER_THREADS = 0,  /* ranks are threads of one process and share a mok_hub; also several ranks on one GPU (see mok_group_create) */
    MOK_PEER_MPI = 1,      /* CPU ranks as processes of one host, which find their shared memory through MPI (/dev/shm; when all ranks are killed
                              inside mok_group_create files mok-* may stay there). mok_group_create belongs
                              between MPI_Init_thread (at least MPI_THREAD_FUNNELED, and then in the main thread) and MPI_Finalize; it
                              alone calls MPI */
    MOK_PEER_NCCL = 2,     /* one process a GPU, NCCL symmetric windows */
    MOK_PEER_EXTERNAL = 3  /* the caller maps the memory: see mok_external */
} mok_peer_kind;

/* One launch per stage, or one persistent kernel per pass. Both give the same bits. AUTO takes FUSED: it was faster in every pass of the
 * layer's run in docs/performance.md. The CPU has FUSED alone, STAGED is refused there (MOK_ERR_UNSUPPORTED). */
typedef enum mok_path { MOK_PATH_AUTO = 0, MOK_PATH_STAGED = 1, MOK_PATH_FUSED = 2 } mok_path;

typedef enum mok_grad_mode {
    MOK_GRAD_OVERWRITE = 0, /* gradient = sum; experts without rows: exact zeros */
    MOK_GRAD_ADD = 1        /* gradient += sum; experts without rows: untouched, bit for bit */
} mok_grad_mode;

typedef struct mok_group mok_group;       /* ranks that work together, their peer-visible memory, and the ring */
typedef struct mok_layer mok_layer;       /* weights and activation of one MoE layer (pointers; the caller owns the weights) */
typedef struct mok_schedule mok_schedule; /* which row goes where, made on the device from the ids */
typedef struct mok_saved mok_saved;       /* what a forward pass keeps for its backward pass */
typedef struct mok_hub mok_hub;           /* meeting point of the ranks of one process (MOK_PEER_THREADS) */

typedef void *mok_stream; /* cudaStream_t, or NULL for the CPU backend */

/* ---- group -------------------------------------------------------------------------------------------------------------- */

/* The same on every rank of a group. */
typedef struct mok_shape {
    int32_t num_experts;         /* E, 1..2^20, over all ranks; CUDA: 1..17058, more is UNSUPPORTED */
    int32_t top_k;               /* K, 1..64 */
    int32_t hidden;              /* H, a multiple of 8 from 8 to 2^20 */
    int32_t intermediate;        /* I, a multiple of 8 from 8 to 2^20 */
    int32_t shared_intermediate; /* Is, a multiple of 8 up to 2^20; 0 = the layers of this group have no shared expert */
    int32_t format;              /* mok_format */
    int64_t max_tokens;          /* T_max, 1..2^31-1, the most tokens that any rank brings to one pass; T_max * K < 2^31, and so are the padded
                                    rows that one rank may own (about R * T_max * K) */
} mok_shape;

/* For MOK_PEER_EXTERNAL: the caller made one region of memory per rank and mapped all of them here: host memory with the CPU backend, memory of each
 * rank's GPU with CUDA (of one process, or mapped by cudaIpcOpenMemHandle or the like). */
typedef struct mok_external {
    size_t struct_size;  /* sizeof(mok_external) */
    void *const *bases;  /* [num_ranks] address in *this* process (or on this device) of each rank's region, 256-byte aligned; copied */
    size_t bytes;        /* size of each region, at least mok_memory.peer_bytes. All zero before the first rank calls mok_group_create: with
                            several ranks their heads, where the ranks meet, are looked at (ARGUMENT); the rest is not, the library zeroes it.
                            The caller owns the regions and may unmap them after mok_group_destroy has returned MOK_OK on every rank. */
} mok_external;

/* Keeps the worst case, max = (R * T_max * K + min(ceil(E/R), R * T_max * K) * 127) rounded down to 128 rows: every route of every rank comes to
 * one rank, padded. It grows with R. A saved object takes 2H + 4I bytes for each row that it keeps, 4 * Is for each of T_max tokens (where any row is
 * kept), and 2H for each of T_max in peer-visible memory. A smaller keep_rows trades that for recomputing: backward took 36 to 43% longer with no row
 * kept (docs/performance.md). The ring stays as it is: see ring_minibatches. */
#define MOK_KEEP_ALL ((int64_t)-1)

/* The CPU backend goes with threads, mpi and external peers, CUDA with threads, nccl and external.
 * Fill with mok_group_config_init, change what you need. Fields marked (same) must be equal on all ranks, which is checked. */
typedef struct mok_group_config {
    size_t struct_size;

    int32_t backend;   /* mok_backend (same); default AUTO: CUDA where mok_backend_available(MOK_BACKEND_CUDA) is 1, else CPU, whatever `peer` is.
                          What a group makes of AUTO and 0, here and below: mok_group_choose before, mok_group_choice after its creation */
    int32_t peer;      /* mok_peer_kind (same); default THREADS */
    int32_t rank;      /* 0 .. num_ranks-1; default 0 */
    int32_t num_ranks; /* R, 1..1024 (same); default 1 */
    mok_shape shape;   /* (same); no default: all 0 but the format, BF16 */

    mok_hub *hub;                   /* MOK_PEER_THREADS: the shared hub. May be NULL when num_ranks is 1. */
    const void *mpi_comm;           /* MOK_PEER_MPI: address of an MPI_Comm of num_ranks processes; NULL = MPI_COMM_WORLD */
    const void *nccl_id;            /* MOK_PEER_NCCL: the 128 bytes of an ncclUniqueId that rank 0 made and handed round */
    const mok_external *external;   /* MOK_PEER_EXTERNAL */
    int32_t device;                 /* CUDA: device ordinal up to 1023, -1 = the current one (default). The caller's current device stays. The CPU
                                       backend looks at its range only */

    int32_t num_saved;    /* how many mok_saved objects the group owns, 0..65536, all together below 2^60 bytes (same); default 1. Peer-visible
                             memory is made collectively, here */
    int64_t keep_rows; /* padded rows whose x, g, u each saved object keeps, rounded down to 128; MOK_KEEP_ALL = worst case (default);
                          0 = recompute; at most 2^31-1, more than the worst case is the worst case (same) */

    int32_t path;             /* mok_path (same); default AUTO */
    int32_t minibatch_rows;   /* rows handed from communication to computation at once, a multiple of 128 below 2^31; 0 = automatic (default) */
    int32_t ring_minibatches; /* minibatches in the ring, 1..2^20; 0 = automatic (default): four, but with CUDA in backward, and in both passes of
                                 the staged path, room for the worst case of rows (see MOK_KEEP_ALL), which grows with R, up to an eighth of
                                 the device's memory. A number here bounds ring_bytes by that many minibatches, whatever R is */
    int32_t look_ahead;       /* minibatches of gate+up ahead of down, 1..2^20; 0 = automatic (default); clamped to ring_minibatches - 1 */
    int32_t comm_workers;     /* workers (CPU threads, CTAs) that move rows, 1..4096; 0 = automatic (default) */
    int32_t compute_workers;  /* workers that multiply, 1..4096; 0 = automatic (default) */
    int32_t reserve_sms;      /* CUDA: SMs to leave free for other kernels, 0..4096 and fewer than the device has; default 0. The CPU backend
                                 looks at its range only */

    int64_t peer_timeout_ms;  /* longest wait for a peer to enter or leave a pass or a schedule build, 1..10^10; default 600000 */
    int64_t local_timeout_ms; /* longest standstill inside a pass, 1..10^10; default 10000 */
} mok_group_config;

/* Writes defaults (pointers: NULL), then applies MOK_* environment variables (see mok_option_get). A variable that does not parse is an error,
 * MOK_LOG included. Errors: ARGUMENT. */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_config_init(mok_group_config *config_out);

/* Memory that a group of this shape needs, per rank, in bytes. */
typedef struct mok_memory {
    size_t struct_size;    /* in: sizeof(mok_memory) */
    uint64_t peer_bytes;   /* peer-visible: barriers, index lists, published rows, slots, saved x */
    uint64_t ring_bytes;   /* the ring and its counters */
    uint64_t saved_bytes;  /* all num_saved objects together, without their peer-visible x */
    uint64_t other_bytes;  /* one schedule in its worst case, shared-expert rows, scratch. Each further schedule takes about
                              8 * max_rows + 4 * T_max * K bytes that are not in here */
    uint64_t total_bytes;  /* the sum */
    int64_t keep_rows;     /* keep_rows as it will be used; 0 where num_saved is 0 */
    int64_t max_rows;      /* worst case of padded rows on this rank */
} mok_memory;

/* config: not NULL; hub, mpi_comm, nccl_id and external are not looked at. Local; nothing is allocated, no memory of a device is touched.
 * Numbers of workers that are left to the library come from the machine (cores; SMs), and minibatch and ring from them: call it where the
 * group will be created. With MOK_BACKEND_CUDA, and with MOK_BACKEND_AUTO in a build that has CUDA, it asks CUDA for its devices, which
 * starts CUDA in this process: not before a fork whose child uses CUDA. With MOK_BACKEND_CUDA and no GPU it answers for an H200.
 * Errors: ARGUMENT, UNSUPPORTED (path, peer, number of experts or GPU that the backend does not have), NOT_BUILT (no such backend in this build),
 * DEVICE (CUDA does not answer). */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_memory(const mok_group_config *config, mok_memory *memory_out);

/* Rows on their way in one pass. */
typedef struct mok_ring_choice {
    int64_t minibatch_rows;   /* at most max_rows of the rank that can own most */
    int32_t ring_minibatches;
    int32_t look_ahead;
} mok_ring_choice;

/* What a group takes: config's values where it has some, clamped to what there can be, and the library's own where it says AUTO or 0. keep_rows is in
 * mok_memory. Workers and rings follow the machine and may differ between ranks. */
typedef struct mok_choice {
    size_t struct_size;       /* in: sizeof(mok_choice) */
    int32_t backend;          /* mok_backend, never AUTO */
    int32_t path;             /* mok_path, never AUTO */
    int32_t comm_workers;     /* CPU threads, or CTAs; a CTA may be both, with warps that move and warps that multiply */
    int32_t compute_workers;
    mok_ring_choice forward;
    mok_ring_choice backward; /* in the same memory; all 0 where num_saved is 0: there is no backward pass */
} mok_choice;

/* What mok_group_create would take for this config on this machine. config is looked at and errors are given as by mok_group_memory. */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_choose(const mok_group_config *config, mok_choice *choice_out);

/* What this group took when it was created. Any thread, no lock. Errors: ARGUMENT. */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_choice(const mok_group *group, mok_choice *choice_out);

/* Meeting point for num_ranks threads, 1..1024. One hub may serve many groups, one after another or side by side (each mok_group_create is
 * matched by order; a rank makes one such call at a time). The caller destroys it after the last group. Not collective. Errors: ARGUMENT, MEMORY. */
MOK_EXPORT MOK_MUST_USE mok_status mok_hub_create(int32_t num_ranks, mok_hub **hub_out);
/* NULL is accepted. */
MOK_EXPORT void mok_hub_destroy(mok_hub *hub);

/* Collective, blocking (bounded by peer_timeout_ms). Checks that the ranks agree, makes all memory, loads every kernel.
 * All ranks succeed or all fail: when one rank cannot, the others return its status and its sentence. (A rank whose own arguments are
 * refused returns at once and does not meet the others, who then wait for it until peer_timeout_ms is over. A rank that two callers claim is
 * told to all who have come (threads, external), and so is a rank that is not the process's own in the communicator (mpi): ARGUMENT.)
 * On failure *group_out is untouched and nothing is left behind; external regions must be zeroed before another attempt.
 * Several ranks of a group on one GPU wait for each other there, so each needs hardware queues and a stream of its own: set
 * CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment before the process makes its first CUDA call (too few queues: UNSUPPORTED), and give
 * each rank its own stream (the default stream is refused by the calls that take one). A call that waits for the whole GPU (cudaFree,
 * cudaFreeHost, cudaDeviceSynchronize) made for one of them waits for the others' queued passes, so this rank's part of those comes first.
 * Errors: ARGUMENT, DISAGREE, MEMORY, NO_DEVICE, UNSUPPORTED, NOT_BUILT, TIMEOUT, ABORTED (a peer gave up during creation). */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_create(const mok_group_config *config, mok_group **group_out);

/* Waits (bounded) for the group's queued work and for each peer to leave, frees everything. NULL is accepted.
 * All layers and schedules of this group must be destroyed before; else MOK_ERR_ARGUMENT, and nothing happened. In every other case the
 * handle is gone. Peers are waited for until peer_timeout_ms is over; when the group had failed before, until the shorter one of
 * peer_timeout_ms and local_timeout_ms is. Returns MOK_ERR_TIMEOUT or MOK_ERR_ABORTED when a peer did not leave: peer-visible memory is then
 * kept on purpose, because freeing it under a peer's load would fault the peer. */
MOK_EXPORT mok_status mok_group_destroy(mok_group *group);

/* What an expired wait saw. All zero when there was none. */
typedef struct mok_fault {
    int32_t status;        /* mok_status of the group */
    int32_t site;          /* which wait: mok_site_name(site) */
    int32_t rank;          /* rank that waited: this rank. With MOK_ERR_ABORTED the rank that it came from: this one if mok_group_abort was
                              called here, a peer that gave up or aborted (one of them, where several did), or one that has left: then
                              site, index, expected and seen tell of the wait for it, and else they are zero */
    int32_t block;         /* worker index that waited */
    int64_t index;         /* which one of that kind: source rank for barriers, minibatch or row tile for counters */
    int64_t expected;      /* value waited for; with MOK_ERR_DISAGREE a number that stands for this rank's pass */
    int64_t seen;          /* value seen last; with MOK_ERR_DISAGREE the number of the pass of rank `index` */
} mok_fault;

typedef struct mok_group_state {
    size_t struct_size;    /* in: sizeof(mok_group_state) */
    mok_fault fault;
    uint64_t bad_ids;      /* ids outside [-1, E) seen so far on all ranks, over all schedules that this rank has finished building */
    uint64_t passes_done;  /* forward and backward passes that this rank has finished */
} mok_group_state;

/* Never blocks, never synchronises. Returns the group's status: MOK_OK, or the reason why every later call on it fails. state_out may be
 * NULL; it is filled whatever the group's status is. */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_status(mok_group *group, mok_group_state *state_out);

/* Blocks the host until all work that was enqueued on this group is done (on CUDA: on `stream`; that of the last call covers the calls
 * before it), the group has failed, or timeout_ms is over (MOK_ERR_TIMEOUT; the group itself is then still healthy and the call may be
 * repeated). -1 = no own limit: the group's deadlines end it. After a failure: with the CPU backend, mok_group_wait(group, NULL, -1) returns
 * the group's status once its workers have let go of all queued work, and tensors are the caller's again; with CUDA it returns at once, and
 * they are when the stream has been synchronised. Errors: ARGUMENT, TIMEOUT, and what the group failed with. */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_wait(mok_group *group, mok_stream stream, int64_t timeout_ms);

/* Raises the abort word on every rank, at once; not collective, never blocks. The group is dead afterwards; used by a rank that leaves on
 * an error of its own. Errors: ARGUMENT. */
MOK_EXPORT mok_status mok_group_abort(mok_group *group);

/* Name of a wait site ("ENTRY barrier", "rows pulled", ...). Never NULL. */
MOK_EXPORT const char *mok_site_name(int32_t site);

/* First local expert and number of local experts of a rank: floor(rank*E/R) and floor((rank+1)*E/R) - first. E from 1 to 2^20, R from 1 to
 * 1024. Pure. Errors: ARGUMENT. */
MOK_EXPORT MOK_MUST_USE mok_status mok_local_experts(int32_t num_experts, int32_t num_ranks, int32_t rank, int32_t *first_out,
                                                     int32_t *num_out);

/* ---- layer -------------------------------------------------------------------------------------------------------------- */

/* [num, rows, cols] matrices, cols contiguous; strides in elements. num = El (routed) or 1 (shared). */
typedef struct mok_matrices {
    void *base;            /* 16-byte aligned; may be NULL only when num is 0. The last element lies less than 2^60 elements behind it */
    int64_t expert_stride; /* elements from one expert to the next, >= cols, a multiple of 8; ignored when num is 1. Experts stand one after
                              another, >= (rows-1)*row_stride + cols, or row by row in turn: row_stride >= (num-1)*expert_stride + cols */
    int64_t row_stride;    /* elements from one row to the next, >= cols, a multiple of 8 */
} mok_matrices;

/* gate and up [.., I, H], down [.., H, I]. Packed gate+up: up.base = gate.base + I * row_stride. Interleaved rows: up.base =
 * gate.base + H, row_stride = 2 * H. */
typedef struct mok_ffn {
    int32_t dtype; /* mok_dtype: weights MOK_DTYPE_BF16; gradients MOK_DTYPE_FP32 or MOK_DTYPE_BF16 */
    int32_t reserved;
    mok_matrices gate, up, down;
} mok_ffn;

/* act(g, u) = silu(min(g, limit)) * (clamp(u, -limit, limit) + up_offset), silu(z) = z / (1 + exp(-alpha * z)).
 * Plain SwiGLU: limit = +inf, alpha = 1, up_offset = 0 (the defaults of mok_layer_config_init). gpt-oss: 7, 1.702, 1. */
typedef struct mok_activation {
    float limit;     /* > 0, +inf allowed; 0, negative and NaN are refused */
    float alpha;     /* finite */
    float up_offset; /* finite */
} mok_activation;

typedef struct mok_layer_config {
    size_t struct_size;
    mok_ffn routed;  /* the El local experts */
    mok_ffn shared;  /* one expert of width Is, the same on every rank; without a shared expert its bases must be NULL */
    mok_activation activation; /* of routed and shared experts alike */
} mok_layer_config;

/* No weights yet, BF16, plain SwiGLU. */
MOK_EXPORT void mok_layer_config_init(mok_layer_config *config_out);

/* Local, not collective. The weights stay the caller's, are read by every pass (so they may change between passes), and must live until the
 * last pass is done. Destroying a layer whose passes are still queued is allowed; the handle is gone then: destroying it again, or a call
 * with it, is undefined. Errors: ARGUMENT, MEMORY. */
MOK_EXPORT MOK_MUST_USE mok_status mok_layer_create(mok_group *group, const mok_layer_config *config, mok_layer **layer_out);
/* NULL is accepted. */
MOK_EXPORT void mok_layer_destroy(mok_layer *layer);

/* ---- schedule ----------------------------------------------------------------------------------------------------------- */

/* Local. Memory for one schedule (see mok_memory.other_bytes); may be built again and again. Errors: ARGUMENT, MEMORY. */
MOK_EXPORT MOK_MUST_USE mok_status mok_schedule_create(mok_group *group, mok_schedule **schedule_out);
/* NULL is accepted. Queued work that uses the schedule may still be there. CPU backend: blocks until that work is done or the group has
 * failed (bounded by the group's deadlines: the work may need peers that have not made their call yet), and holds the group's lock. CUDA:
 * returns at once; the memory goes to the group, which gives it to the next mok_schedule_create, so use that one on the same stream, or
 * after the work. The handle is gone, as with mok_layer_destroy. */
MOK_EXPORT void mok_schedule_destroy(mok_schedule *schedule);

/* Collective, asynchronous, graph-capture safe.
 * ids [num_tokens, K] int32, in: expert of each route. -1 = not routed. An id outside [-1, E) is treated as -1, counted, and reported by
 * mok_group_status on every rank. May be NULL when num_tokens is 0.
 * num_tokens: T of this rank, 0..T_max.
 * A rank that builds where another runs a pass is found by no backend: both wait until peer_timeout_ms is over, and the group fails with
 * MOK_ERR_TIMEOUT or MOK_ERR_ABORTED. A rank that has left (mok_group_destroy) without making a call that others make is named to them at
 * once, as MOK_ERR_ABORTED. The same holds for passes.
 * Errors: ARGUMENT; MEMORY; DEVICE (CUDA). An error from CUDA itself fails the group. */
MOK_EXPORT MOK_MUST_USE mok_status mok_schedule_build(mok_schedule *schedule, const int32_t *ids, int64_t num_tokens, mok_stream stream);

/* For tables and tests: blocks until the schedule is built (which takes all ranks) and copies counts to host memory. It holds the group's
 * lock meanwhile: other calls of this group wait, but for those that take no lock. Errors: ARGUMENT, MISMATCH (never built).
 * rows_out [El] int64: rows of each local expert (without padding); NULL = not wanted. padded_out: one int64, all rows with padding to
 * 128 per expert; not NULL. */
MOK_EXPORT MOK_MUST_USE mok_status mok_schedule_counts(mok_schedule *schedule, mok_stream stream, int64_t *rows_out, int64_t *padded_out);

/* ---- saved -------------------------------------------------------------------------------------------------------------- */

/* The idx-th of the group's num_saved objects. Owned by the group: not destroyed by the caller. Errors: ARGUMENT. */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_saved(mok_group *group, int32_t idx, mok_saved **saved_out);

/* Zero-copy entry: [T_max, H] bf16 peer-visible memory of the saved object: one such buffer an object, num_saved in a group, and none for a
 * pass without a saved object. A caller that writes x here (on the stream, before mok_forward) and passes this very pointer as x, with this
 * object, saves the copy; any other x, that of another object among them, is copied here by the pass. The pointer is valid until the group is
 * destroyed. What stands here is x until the backward pass of this object is done (after mok_saved_release: the forward pass); then it may
 * be written again. Errors: ARGUMENT. */
MOK_EXPORT MOK_MUST_USE mok_status mok_saved_input(mok_saved *saved, void **x_out);

/* Gives up the backward pass that this object waits for, so that the next mok_forward may use it: for a caller that drops a step. Local,
 * but every rank must do it, as every rank calls mok_forward. Does nothing to an object that does not wait. Errors: ARGUMENT. */
MOK_EXPORT MOK_MUST_USE mok_status mok_saved_release(mok_saved *saved);

/* ---- forward ------------------------------------------------------------------------------------------------------------ */

typedef struct mok_forward_args {
    size_t struct_size;
    const void *x;         /* [T, H] bf16, in. T is the schedule's num_tokens. NULL only when T is 0. */
    const float *w;        /* [T, K] fp32, in: router weights. Weights of routes with id -1 are not read. */
    const float *shared_w; /* [T] fp32, in: weight of the shared expert per token; NULL = 1; must be NULL without a shared expert */
    void *y;               /* [T, H] bf16, out. May not overlap any input, the layer's weights, nor the input memory (mok_saved_input) of
                            `saved` or of any saved object that waits for its backward pass. */
    mok_saved *saved;      /* kept for backward; NULL = inference. Must be free: never used, its last backward enqueued before, or released.
                            All ranks must give the object of the same index in one pass: it names the memory that peers pull x from. */
} mok_forward_args;

/* Everything NULL. */
MOK_EXPORT void mok_forward_args_init(mok_forward_args *args_out);

/* Collective, asynchronous, graph-capture safe. layer, schedule and saved must belong to one group; all ranks give saved, or none.
 * All ranks must enter the same pass: forward or backward, the saved object of the same index or none, a schedule whose last build is the
 * same one in the order of builds on the group (replayed builds count). When they do not, nothing is computed from rows of such a pass, and
 * mok_group_wait and every later call return MOK_ERR_DISAGREE on every rank.
 * A pass that meets a schedule build of another rank ends as a time-out with both backends, see mok_schedule_build.
 * y[t] = bf16(shared_w[t]*s_t + sum over k of w[t,k]*y_(t,k)), summed in fp32 in that order.
 * Errors: ARGUMENT; MISMATCH (objects of two groups, schedule never built, saved waits for a backward pass); MEMORY; DEVICE (CUDA). An error
 * from CUDA itself fails the group. */
MOK_EXPORT MOK_MUST_USE mok_status mok_forward(mok_layer *layer, mok_schedule *schedule, const mok_forward_args *args, mok_stream stream);

/* ---- backward ----------------------------------------------------------------------------------------------------------- */

typedef struct mok_backward_args {
    size_t struct_size;
    mok_saved *saved;      /* of the forward pass; layer and schedule must be the ones that forward used, and not built anew since */
    const void *dy;        /* [T, H] bf16, in */
    const float *w;        /* [T, K] fp32, in: the same values as in forward */
    const float *shared_w; /* [T] fp32, in: as in forward */
    void *dx;              /* [T, H] bf16, out. See grads for what it may not overlap; dw, dshared_w likewise */
    float *dw;             /* [T, K] fp32, out: gradient of w; exactly 0 where id is -1. NULL only when T is 0 */
    float *dshared_w;      /* [T] fp32, out; NULL = not wanted; must be NULL without a shared expert */
    mok_ffn grads;         /* routed weight gradients of the El local experts, shapes as the weights, in/out. No element of any output may
                              lie on another output, an input or a weight, nor on the input memory of `saved` or of a saved object that
                              waits for its backward pass; strided rows may lie between those of another tensor */
    mok_ffn shared_grads;  /* of the shared expert, over this rank's own tokens only: the caller sums them over ranks. Without a shared expert
                              its bases must be NULL */
    int32_t grad_mode;     /* mok_grad_mode, for routed and shared alike */
    int32_t reserved;
} mok_backward_args;

/* Everything NULL; gradients in fp32, overwritten. */
MOK_EXPORT void mok_backward_args_init(mok_backward_args *args_out);

/* Collective, asynchronous, graph-capture safe. Frees `saved` for the next forward. Errors: ARGUMENT; MISMATCH (objects of two groups;
 * saved never filled or already used; another layer than in forward; another schedule, or built anew since); MEMORY; DEVICE (CUDA). An error
 * from CUDA itself fails the group. */
MOK_EXPORT MOK_MUST_USE mok_status mok_backward(mok_layer *layer, mok_schedule *schedule, const mok_backward_args *args, mok_stream stream);

/* ---- router helper ------------------------------------------------------------------------------------------------------ */

typedef enum mok_score { MOK_SCORE_SOFTMAX = 0, MOK_SCORE_SIGMOID = 1 } mok_score;

typedef struct mok_router_config {
    size_t struct_size;
    int32_t score;          /* mok_score */
    int32_t top_k;          /* K, 1..min(E, 64) */
    int32_t num_experts;    /* E, 1..2^20 */
    int32_t num_groups;     /* expert groups (DeepSeek-V3 n_group); 1 = none; divides E */
    int32_t keep_groups;    /* groups a token may use (topk_group); 1..num_groups */
    int32_t normalize;      /* 1: chosen weights are divided by their sum (softmax), by sum + 1e-20 (sigmoid); 0: not */
    int32_t softmax_after;  /* 1: softmax over the K chosen logits only (gpt-oss, softmax alone); 0: over all E, then choose */
    float scale;            /* routed scaling factor, multiplied in last; 1 = none */
    const float *bias;      /* [E] fp32 correction bias added to the score for *choosing* only; NULL = none; host memory */
} mok_router_config;

/* Defaults: every field has a legal value but top_k and num_experts, which are the caller's to set. */
MOK_EXPORT void mok_router_config_init(mok_router_config *config_out);

/* Host only, blocking. Everything in fp32. Ties: the lower id wins. A masked group is never chosen (its score is -inf).
 * Logits that are not finite: ids are valid and distinct all the same. A score that is NaN ranks below every number, -inf included. Weights
 * follow from plain arithmetic: NaN in all weights of the token where they share a sum with the NaN (softmax over all E; normalize or
 * softmax_after if it is chosen), else in its own; never in another token's. Under softmax +inf acts as NaN does in the weights, -inf gives
 * 0 (all -inf: NaN); sigmoid gives 1 and 0.
 * logits [num_tokens, E] fp32, in; ids_out [num_tokens, K] int32 and w_out [num_tokens, K] fp32, in descending order of the choosing score.
 * num_tokens: 0..2^31-1; with 0 the three may be NULL. Errors: ARGUMENT, MEMORY. */
MOK_EXPORT MOK_MUST_USE mok_status mok_router_choose(const mok_router_config *config, const float *logits, int64_t num_tokens,
                                                     int32_t *ids_out, float *w_out);

/* Host only, blocking. logits_out[t,e] = fp32 dot product of bf16 x[t,:] and bf16 weight[e,:], plus bias[e] when bias is not NULL.
 * x [num_tokens, H] bf16, weight [E, H] bf16, bias [E] fp32 or NULL, logits_out [num_tokens, E] fp32.
 * num_tokens: 0..2^31-1; hidden and num_experts: 1..2^20. Errors: ARGUMENT, MEMORY. */
MOK_EXPORT MOK_MUST_USE mok_status mok_router_logits(const void *x, const void *weight, const float *bias, int64_t num_tokens,
                                                     int32_t hidden, int32_t num_experts, float *logits_out);

/* ---- quantisation (host) ------------------------------------------------------------------------------------------------ */

typedef enum mok_scale_rounding {
    MOK_SCALE_RCEIL = 0,    /* smallest power of two with amax / scale <= 448 */
    MOK_SCALE_OCP_FLOOR = 1 /* 2^(floor(log2(amax)) - 8), OCP MX v1.0 */
} mok_scale_rounding;

/* MXFP8 of num_rows rows of num_cols bf16 values, blocks of 32 along a row (num_cols a multiple of 32). Values saturate at +-448.
 * x [num_rows, num_cols] bf16, in; e4m3_out [num_rows, num_cols]; e8m0_out [num_rows, num_cols/32]. A block that holds NaN or Inf gets
 * scale 255 (NaN). Errors: ARGUMENT. */
MOK_EXPORT MOK_MUST_USE mok_status mok_mxfp8_quantize(const void *x, int64_t num_rows, int64_t num_cols, mok_scale_rounding rounding,
                                                      uint8_t *e4m3_out, uint8_t *e8m0_out);
/* The inverse, to fp32 (exact). Scale byte b is 2^(b-127); 255 is NaN. Errors: ARGUMENT. */
MOK_EXPORT MOK_MUST_USE mok_status mok_mxfp8_dequantize(const uint8_t *e4m3, const uint8_t *e8m0, int64_t num_rows, int64_t num_cols,
                                                        float *x_out);

/* ---- options by name ---------------------------------------------------------------------------------------------------- */

/* One entry of the options table: it feeds `mok --help`, the MOK_* environment variables and mok_option_set. */
typedef struct mok_option {
    const char *name;    /* "minibatch"; the command-line tool takes --minibatch */
    const char *env;     /* "MOK_MINIBATCH" */
    const char *value;   /* "ROWS", or the choices "auto|cpu|cuda" */
    const char *help;    /* one sentence */
    const char *initial; /* default as text */
} mok_option;

/* Number of options. */
MOK_EXPORT int32_t mok_option_count(void);
/* NULL when idx is out of range. Static memory. */
MOK_EXPORT const mok_option *mok_option_get(int32_t idx);
/* Sets the field of config (filled by mok_group_config_init) that belongs to `name` from text. Errors: ARGUMENT (unknown name, value that
 * does not parse or is out of range). */
MOK_EXPORT MOK_MUST_USE mok_status mok_option_set(mok_group_config *config, const char *name, const char *value);

/* ---- what this build and machine can do --------------------------------------------------------------------------------- */

/* 1 when the library was built with it and it can be used on this machine now, 0 otherwise (mok_last_error says why). Asking about the CPU backend
 * tries OpenBLAS, once in a process; a group on it sets OpenBLAS to one thread, for the whole process and for good. */
MOK_EXPORT int mok_backend_available(mok_backend backend);
MOK_EXPORT int mok_peer_available(mok_peer_kind peer);
/* One line per library and device, for bug reports; '\n' separated; static memory. */
MOK_EXPORT const char *mok_build_info(void);

/* ---- experimental: trace ------------------------------------------------------------------------------------------------ */

/* One piece of work or waiting of one worker. Times are nanoseconds of one monotonic clock per rank, from an arbitrary zero. */
typedef struct mok_event {
    int32_t kind;     /* mok_event_name(kind): "pull", "gate+up", "wait rows pulled", ... */
    int32_t worker;   /* worker index; communication workers come first */
    int64_t index;    /* minibatch, row tile or source rank, by kind */
    int64_t pass;     /* number of the pass or schedule on this group */
    int64_t begin_ns;
    int64_t end_ns;
} mok_event;

/* Starts recording with room for max_events per worker (0 stops and frees). Only between passes: MOK_ERR_ARGUMENT while work is queued.
 * Errors: ARGUMENT, MEMORY, DEVICE (CUDA). */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_trace(mok_group *group, int64_t max_events);
/* Copies recorded events (host memory, ordered by worker, then time) and forgets them. Only between passes. *num_out is the number there
 * were; at most `capacity` are copied. dropped_out (may be NULL): events that found no room.
 * Errors: ARGUMENT, MEMORY (CUDA), DEVICE (CUDA). */
MOK_EXPORT MOK_MUST_USE mok_status mok_group_trace_take(mok_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out,
                                                        int64_t *dropped_out);
/* Name of an event kind. Never NULL. Kinds below mok_event_first_wait() are work, the others waiting. */
MOK_EXPORT const char *mok_event_name(int32_t kind);
MOK_EXPORT int32_t mok_event_first_wait(void);

#ifdef __cplusplus
}
#endif
#endif
