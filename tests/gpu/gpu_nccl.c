/*
 * Ranks as processes that meet through NCCL, one GPU each: the bits of the same layer run by threads, also when each process sees its own GPU alone, as
 * device 0, and of one rank alone on the last GPU; two ranks on one GPU are refused, and ranks for which NCCL makes no window; a peer that is killed or
 * stopped, in front of a schedule build, or behind its forward pass, so that the others wait in backward. As many ranks as there are GPUs, up to eight;
 * with one GPU the group has one rank, and what needs two is skipped.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_layer.h"
#include "gpu_slow.h"
#include "pass/site.h"

#ifdef MOK_HAVE_NCCL
#include <nccl.h>

enum {
    MAX_RANKS = 8,
    LIMIT_MS = 4000,
    PEER_LIMIT_MS = 4000, /* where a peer is lost; NCCL's meeting is in it, the start of CUDA is not */
    MORE_LIMIT_MS = 1000, /* for each rank beyond two: a meeting of more takes longer */
    START_S = 40,         /* for the start of CUDA in all processes */
    ALARM_S = 70,         /* then a process ends, whatever it does */
    OUTPUT_ROOM = 16 << 20
};

enum scenario { PLAIN, APART, LAST_GPU, SAME_GPU, NO_WINDOW, KILLED, STOPPED, KILLED_BACKWARD, STOPPED_BACKWARD };

static int loses_peer(enum scenario scenario) { return scenario >= KILLED; }
static int is_stopped(enum scenario scenario) { return scenario == STOPPED || scenario == STOPPED_BACKWARD; }

/* Between processes. */
struct board {
    ncclUniqueId id;
    volatile int32_t id_is_ready;
    volatile int32_t has_started[MAX_RANKS]; /* CUDA is there */
    volatile int32_t is_running[MAX_RANKS];  /* the rank has finished its first pass */
    mok_status status[MAX_RANKS];
    mok_status left[MAX_RANKS];
    int32_t site[MAX_RANKS]; /* where it waited for a lost peer */
    char message[MAX_RANKS][512];
    size_t bytes[MAX_RANKS];
    char outputs[MAX_RANKS][OUTPUT_ROOM];
};

/* Rank 1 goes no further. Behind its forward pass: its kernels have run, the peer's backward pass is the one that waits. */
static void get_lost(struct gpu_layer *layer, enum scenario scenario)
{
    if (scenario == KILLED_BACKWARD || scenario == STOPPED_BACKWARD) {
        mok_status status = mok_schedule_build(layer->schedule, layer->ids, layer->num_tokens, layer->stream);
        status = status == MOK_OK ? mok_forward(layer->layer, layer->schedule, &layer->forward, layer->stream) : status;
        status = status == MOK_OK ? mok_group_wait(layer->group, layer->stream, -1) : status;
        if (status != MOK_OK) {
            _exit(1); /* the other sees another site than it should */
        }
    }
    raise(is_stopped(scenario) ? SIGSTOP : SIGKILL);
}

static mok_status run_rank(struct gpu_layer *layer, struct board *board, int32_t rank, int32_t num_ranks, enum scenario scenario)
{
    mok_group_config config;
    mok_group_state state = {.struct_size = sizeof state};
    mok_status status = gpu_layer_config(rank, num_ranks, NULL, &config);
    config.peer = MOK_PEER_NCCL;
    config.nccl_id = &board->id;
    config.peer_timeout_ms = loses_peer(scenario) ? PEER_LIMIT_MS + (num_ranks - 2) * MORE_LIMIT_MS : 60000;
    config.path = scenario == APART ? MOK_PATH_STAGED : config.path; /* the same bits */
    config.device = scenario == SAME_GPU ? 0 : config.device;
    config.local_timeout_ms = LIMIT_MS;
    status = status == MOK_OK ? gpu_layer_open(layer, &config) : status;
    if (status != MOK_OK) {
        return status;
    }
    gpu_layer_inputs(layer, 17);
    gpu_layer_poison(layer, 0xab);
    board->bytes[rank] = layer->outputs_bytes;
    status = gpu_layer_enqueue(layer);
    status = status == MOK_OK ? gpu_layer_outputs(layer, board->outputs[rank]) : status;
    board->is_running[rank] = status == MOK_OK;
    if (loses_peer(scenario) && status == MOK_OK) {
        if (rank == 1) {
            get_lost(layer, scenario);
        }
        usleep(300000);
        status = gpu_layer_enqueue(layer);
        status = status == MOK_OK ? gpu_layer_outputs(layer, board->outputs[rank]) : status;
        board->site[rank] = mok_group_status(layer->group, &state) == MOK_OK ? MOK_SITE_NONE : state.fault.site;
    }
    return status;
}

/* Leaves only the rank-th of the GPUs that the environment allows. */
static void see_one_gpu(int32_t rank)
{
    char list[512], one[64];
    const char *allowed = getenv("CUDA_VISIBLE_DEVICES"), *name = NULL;
    if (allowed == NULL) {
        snprintf(one, sizeof one, "%d", rank);
    } else {
        snprintf(list, sizeof list, "%s", allowed);
        name = strtok(list, ",");
        for (int32_t i = 0; i < rank && name != NULL; i++) {
            name = strtok(NULL, ",");
        }
        snprintf(one, sizeof one, "%s", name == NULL ? "" : name);
    }
    (void)setenv("CUDA_VISIBLE_DEVICES", one, 1);
}

/* The slow part of starting CUDA, and then all ranks at once. */
static void start_together(struct board *board, int32_t rank, int32_t num_ranks, int32_t device)
{
    int32_t num_started = 0;
    (void)cudaSetDevice(device);
    (void)gpu_load_kernels();
    board->has_started[rank] = 1;
    for (int turn = 0; turn < START_S * 1000 && num_started < num_ranks; turn++) {
        num_started = 0;
        for (int32_t r = 0; r < num_ranks; r++) {
            num_started += board->has_started[r];
        }
        usleep(1000);
    }
}

/* One rank, in a process of its own that has not used CUDA before. */
static void child(struct board *board, int32_t rank, int32_t num_ranks, enum scenario scenario, int32_t gpus)
{
    struct gpu_layer layer;
    memset(&layer, 0, sizeof layer);
    alarm(ALARM_S);
    if (scenario == APART) {
        see_one_gpu(rank);
    } else if (scenario == LAST_GPU) {
        see_one_gpu(gpus - 1);
    } else if (scenario == NO_WINDOW) {
        (void)setenv("NCCL_WIN_ENABLE", "0", 1);
    }
    start_together(board, rank, num_ranks, scenario == SAME_GPU ? 0 : rank % gpu_count());
    if (rank == 0) {
        ncclGetUniqueId(&board->id);
        board->id_is_ready = 1;
    }
    while (!board->id_is_ready) {
        usleep(1000);
    }
    board->status[rank] = run_rank(&layer, board, rank, num_ranks, scenario);
    strncpy(board->message[rank], mok_last_error(), sizeof board->message[rank] - 1);
    board->left[rank] = layer.group == NULL ? MOK_OK : gpu_layer_close(&layer);
    _exit(0);
}

/* On a machine of `gpus` GPUs. */
static struct board *run_processes(int32_t num_ranks, enum scenario scenario, int32_t gpus)
{
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[MAX_RANKS] = {0};
    for (int32_t r = 0; r < num_ranks; r++) {
        board->status[r] = MOK_ERR_INTERNAL; /* until it has said something else */
        strcpy(board->message[r], "the process ended without a word");
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            child(board, r, num_ranks, scenario, gpus);
        }
    }
    waitpid(pids[0], NULL, 0); /* a stopped rank 1 is ended when the others are done */
    for (int32_t r = num_ranks - 1; r > 0; r--) {
        if (is_stopped(scenario) && r == 1) {
            kill(pids[r], SIGKILL);
        }
        waitpid(pids[r], NULL, 0);
    }
    return board;
}

/* ---- the same by threads ---------------------------------------------------------------------------------------------------- */

struct threads_run {
    mok_hub *hub;
    int32_t num_ranks;
    const struct board *board;
    int num_wrong[MAX_RANKS];
};

static void on_thread(int32_t rank, void *context)
{
    struct threads_run *run = context;
    struct gpu_layer layer;
    mok_group_config config;
    mok_status status = gpu_layer_config(rank, run->num_ranks, run->hub, &config);
    status = status == MOK_OK ? gpu_layer_open(&layer, &config) : status;
    if (status != MOK_OK) {
        gpu_check(0, "rank %d: %s", rank, mok_last_error());
        run->num_wrong[rank] = 1;
        return;
    }
    char *outputs = malloc(layer.outputs_bytes);
    gpu_layer_inputs(&layer, 17);
    gpu_layer_poison(&layer, 0xab);
    status = gpu_layer_enqueue(&layer);
    status = status == MOK_OK ? gpu_layer_outputs(&layer, outputs) : status;
    run->num_wrong[rank] = status != MOK_OK || memcmp(outputs, run->board->outputs[rank], layer.outputs_bytes) != 0;
    free(outputs);
    (void)gpu_layer_close(&layer);
}

static void compare_with_threads(const struct board *board, int32_t num_ranks, const char *name)
{
    struct threads_run run = {.num_ranks = num_ranks, .board = board};
    int ok = mok_hub_create(num_ranks, &run.hub) == MOK_OK;
    for (int32_t r = 0; r < num_ranks; r++) {
        if (board->status[r] != MOK_OK || board->left[r] != MOK_OK) {
            ok = gpu_check(0, "nccl rank %d: %s, left with %s: %s", r, mok_status_name(board->status[r]), mok_status_name(board->left[r]),
                           board->message[r]);
        }
    }
    if (ok) {
        gpu_run_ranks(num_ranks, on_thread, &run);
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        ok = ok && run.num_wrong[r] == 0;
    }
    mok_hub_destroy(run.hub);
    gpu_check(ok, "nccl, ranks %s (%d): the bits that threads give", name, num_ranks);
}

/* NCCL takes a GPU once, and makes windows only where memory can be shared: all ranks must be told, and none may wait for ever or fault. */
static void look_at_refusal(const struct board *board, int32_t num_ranks, const char *name)
{
    int32_t num_refused = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        num_refused += board->status[r] == MOK_ERR_UNSUPPORTED;
    }
    gpu_check(num_refused == num_ranks, "nccl, %d processes%s: %d are refused, rank 0 with %s (%s)", num_ranks, name, num_refused,
              mok_status_name(board->status[0]), board->message[0]);
}

/* Rank 1 is lost in the middle of its work. The driver may notice a dead process first, and who was told by another rank says so. site: where the
 * others wait for it. */
static void look_at_lost_peer(const struct board *board, int32_t num_ranks, const char *name, int32_t site)
{
    int num_told = 0, num_waited = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        int has_waited = (board->status[r] == MOK_ERR_TIMEOUT && board->site[r] == site) || board->status[r] == MOK_ERR_DEVICE;
        num_waited += r != 1 && board->is_running[r] && has_waited;
        num_told += r != 1 && board->is_running[r] && (has_waited || board->status[r] == MOK_ERR_ABORTED);
    }
    gpu_check(num_told == num_ranks - 1 && num_waited > 0 && board->is_running[1],
              "nccl, a peer of %d is %s: %d others know, %d by themselves; rank 0 got %s at %s (%s) and left with %s", num_ranks, name, num_told, num_waited,
              mok_status_name(board->status[0]), mok_site_name(board->site[0]), board->message[0], mok_status_name(board->left[0]));
}

int main(void)
{
    int count = 0;
    int counts[2];
    if (pipe(counts) != 0) {
        return 1;
    }
    pid_t counter = fork(); /* CUDA does not survive a fork, so another process counts */
    if (counter == 0) {
        count = gpu_count();
        _exit(write(counts[1], &count, sizeof count) != sizeof count);
    }
    waitpid(counter, NULL, 0);
    if (read(counts[0], &count, sizeof count) != sizeof count || count == 0) {
        gpu_skip("nccl: no GPU");
        return gpu_finish();
    }
    int32_t num_ranks = count < MAX_RANKS ? count : MAX_RANKS;
    struct board *board = run_processes(num_ranks, PLAIN, count), *apart = run_processes(num_ranks, APART, count);
    struct board *last = run_processes(1, LAST_GPU, count);
    look_at_refusal(run_processes(2, SAME_GPU, count), 2, " on one GPU");
    if (count > 1) {
        look_at_refusal(run_processes(num_ranks, NO_WINDOW, count), num_ranks, " without symmetric windows");
        look_at_lost_peer(run_processes(num_ranks, KILLED, count), num_ranks, "killed", MOK_SITE_SCHED_BARRIER);
        look_at_lost_peer(run_processes(num_ranks, STOPPED, count), num_ranks, "stopped", MOK_SITE_SCHED_BARRIER);
        look_at_lost_peer(run_processes(num_ranks, KILLED_BACKWARD, count), num_ranks, "killed behind its forward pass", MOK_SITE_ENTRY_BARRIER);
        look_at_lost_peer(run_processes(num_ranks, STOPPED_BACKWARD, count), num_ranks, "stopped behind its forward pass", MOK_SITE_ENTRY_BARRIER);
    } else {
        gpu_skip("nccl: more than one rank, no windows, killed and stopped peers: one GPU");
    }
    compare_with_threads(board, num_ranks, "with a GPU each");
    compare_with_threads(apart, num_ranks, "that see one GPU each");
    compare_with_threads(last, 1, "alone on the last GPU");
    munmap(board, sizeof *board);
    munmap(apart, sizeof *apart);
    munmap(last, sizeof *last);
    return gpu_finish();
}
#else
int main(void)
{
    gpu_skip("nccl: this build has no NCCL");
    return gpu_finish();
}
#endif
