/*
 * Ranks of the CPU backend as threads that each play one script, and what became of them. The test's own waits are for its threads.
 */
#ifndef MOK_TEST_CPU_WORLD_H
#define MOK_TEST_CPU_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/status.h"
#include "test_cpu_run.h"

enum { RANKS = 3 };

static const struct mok_ref_case small_case = {
    .name = "faults",
    .num_ranks = RANKS,
    .num_experts = 5,
    .top_k = 2,
    .hidden = 64,
    .inter = 40,
    .shared_inter = 24,
    .tokens = {130, 70, 33},
    .ids = MOK_IDS_DISTINCT,
    .values = MOK_VALUES_NORMAL,
    .router = MOK_ROUTER_NORMALIZED,
    .grad_dtype = MOK_DTYPE_FP32,
};

/* A rank and what it does; all ranks of a world run the same script with their own rank. */
struct world {
    struct mok_ref_problem problem;
    struct mok_ref_outputs outputs;
    struct cpu_run run;
    int64_t local_timeout_ms;
    struct cpu_rank ranks[RANKS];
    mok_status called[RANKS]; /* status of the last call of the script */
    mok_status destroyed[RANKS];
    mok_group_state states[RANKS];
    char why[RANKS][256]; /* sentence of a destroy that failed */
    int64_t script_ms[RANKS], destroy_ms[RANKS];
    void *kept[RANKS]; /* region that a rank left behind because a peer might still touch it */
    pthread_barrier_t opened;
};

typedef void script(struct world *world, struct cpu_rank *rank);

struct actor {
    struct world *world;
    struct cpu_rank *rank;
    script *act;
};

static int64_t now_ms(void) { return mok_trace_now_ns() / 1000000; }

static void *be_actor(void *argument)
{
    struct actor *actor = argument;
    struct world *world = actor->world;
    struct cpu_rank *rank = actor->rank;
    rank->status = open_rank(rank);
    /* The test's own waits are for its threads: no rank begins before all are open. */
    pthread_barrier_wait(&world->opened);
    if (rank->status != MOK_OK) {
        return NULL;
    }
    int64_t begin = now_ms();
    make_grads(rank);
    actor->act(world, rank);
    world->script_ms[rank->rank] = now_ms() - begin;
    world->states[rank->rank].struct_size = sizeof world->states[0];
    mok_status state = mok_pass_cpu.state(rank->group, &world->states[rank->rank]);
    (void)state;
    take_grads(rank);
    begin = now_ms();
    mok_pass_cpu.schedule_destroy(rank->schedule);
    world->destroyed[rank->rank] = mok_pass_cpu.destroy(rank->group);
    world->destroy_ms[rank->rank] = now_ms() - begin;
    if (world->destroyed[rank->rank] != MOK_OK) {
        mok_base_error_copy(world->why[rank->rank], sizeof world->why[0]);
    }
    world->kept[rank->rank] = world->destroyed[rank->rank] != MOK_OK ? rank->peer->base[rank->rank] : NULL;
    rank->peer->ops->unmap(rank->peer, world->destroyed[rank->rank] != MOK_OK);
    rank->peer->ops->leave(rank->peer);
    return NULL;
}

static struct world *run_world(const struct cpu_run *run, int64_t peer_timeout_ms, int64_t local_timeout_ms, script *act)
{
    struct world *world = calloc(1, sizeof *world);
    struct actor actors[RANKS];
    pthread_t threads[RANKS];
    mok_hub *hub;
    char peer_text[32], local_text[32];
    world->run = *run;
    world->local_timeout_ms = local_timeout_ms;
    snprintf(peer_text, sizeof peer_text, "%lld", (long long)peer_timeout_ms);
    snprintf(local_text, sizeof local_text, "%lld", (long long)local_timeout_ms);
    setenv("MOK_PEER_TIMEOUT", peer_text, 1);
    setenv("MOK_LOCAL_TIMEOUT", local_text, 1);
    assert_int_equal(mok_ref_generate(&small_case, 0, &world->problem), MOK_OK);
    assert_int_equal(mok_ref_outputs_alloc(&world->problem, &world->outputs), MOK_OK);
    assert_int_equal(mok_hub_create(RANKS, &hub), MOK_OK);
    pthread_barrier_init(&world->opened, NULL, RANKS);
    for (int32_t r = 0; r < RANKS; r++) {
        struct cpu_rank *rank = &world->ranks[r];
        rank->run = &world->run;
        rank->problem = &world->problem;
        rank->outputs = &world->outputs;
        rank->hub = hub;
        rank->rank = r;
        actors[r] = (struct actor){world, rank, act};
        assert_int_equal(pthread_create(&threads[r], NULL, be_actor, &actors[r]), 0);
    }
    for (int32_t r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
        assert_int_equal(world->ranks[r].status, MOK_OK);
    }
    for (int32_t r = 0; r < RANKS; r++) {
        free(world->kept[r]); /* now all are gone */
    }
    pthread_barrier_destroy(&world->opened);
    mok_hub_destroy(hub);
    return world;
}

static void free_world(struct world *world)
{
    mok_ref_outputs_free(&world->problem, &world->outputs);
    mok_ref_problem_free(&world->problem);
    free(world);
}

static const struct cpu_run quick_run = {.keep_rows = MOK_KEEP_ALL, .minibatch_rows = 128, .ring_minibatches = 2, .poison = 0xff};

static mok_status build(struct cpu_rank *rank)
{
    const struct mok_ref_problem *problem = rank->problem;
    return mok_pass_cpu.schedule_build(rank->schedule, problem->ids + mok_ref_first_token(problem, rank->rank) * problem->top_k,
                                       problem->tokens[rank->rank], NULL);
}

#endif
