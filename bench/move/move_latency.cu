/*
 * Rows of one owner until it knows that they are there, over the number of sources: rank 0 needs some rows, in equal parts from ranks 1 .. S.
 *
 *   pull     the owner's kernel reads them: when it ends, they are there
 *   push     each source writes its part and then a word in the owner's memory; the owner waits for S words. The word is written by a launch of its
 *            own behind the source's kernel, which costs some 2 us
 *   signal   the words alone
 *
 * Device time of the owner, from the word that starts all ranks. What a source is late by (it polls the same word in host memory) is in push and signal.
 */
#include "cuda/hw/scope.cuh"
#include "move_ranks.h"

enum { ROW_BYTES = 4096, LIMIT_NS = 1000000000 };

enum way { BY_PULL, BY_PUSH, BY_SIGNAL, NUM_WAYS };
static const char *const way_names[NUM_WAYS] = {"pull", "push", "signal"};

static __global__ void signal_owner(uint32_t *word, uint32_t round)
{
    mok_hw_fence_sys();
    mok_hw_store_release_sys(word, round);
}

/* A thread a source. Ends also when a word does not come, with another word than expected. */
static __global__ void wait_for_sources(const uint32_t *words, uint32_t round)
{
    for (int64_t looks = 0; mok_hw_load_acquire_sys(words + threadIdx.x) != round && looks < LIMIT_NS / 100; looks++) {
    }
    __syncthreads();
}

static uint32_t *word_of(int32_t source) { return (uint32_t *)(ranks[0].region + FLAGS_AT) + source - 1; }

static void enqueue_source(int32_t s, enum way way, int32_t num_ctas, uint32_t round)
{
    CHECK(cudaSetDevice(ranks[s].device));
    enqueue_gate(s);
    if (way == BY_PUSH) {
        enqueue_move(s, SEND, ROW_BYTES, num_ctas);
    }
    signal_owner<<<1, 1, 0, ranks[s].stream>>>(word_of(s), round);
}

static float run_once(enum way way, int32_t num_sources, int32_t num_ctas)
{
    static uint32_t round;
    float ms;
    round++;
    CHECK(cudaSetDevice(ranks[0].device));
    enqueue_gate(0);
    CHECK(cudaEventRecord(ranks[0].begin, ranks[0].stream));
    if (way == BY_PULL) {
        enqueue_move(0, PULL, ROW_BYTES, num_ctas);
    } else {
        wait_for_sources<<<1, (unsigned)num_sources, 0, ranks[0].stream>>>(word_of(1), round);
    }
    CHECK(cudaEventRecord(ranks[0].end, ranks[0].stream));
    for (int32_t s = 1; s <= num_sources && way != BY_PULL; s++) {
        enqueue_source(s, way, num_ctas, round);
    }
    open_gate();
    for (int32_t r = 0; r <= num_sources; r++) {
        CHECK(cudaSetDevice(ranks[r].device));
        CHECK(cudaStreamSynchronize(ranks[r].stream));
    }
    CHECK(cudaEventElapsedTime(&ms, ranks[0].begin, ranks[0].end));
    return ms;
}

static struct timing time_way(enum way way, int32_t num_sources, int32_t num_ctas)
{
    float ms[RUNS];
    for (int i = -WARM_UP; i < RUNS; i++) {
        float one = run_once(way, num_sources, num_ctas);
        if (i >= 0) {
            ms[i] = one;
        }
    }
    return timing_of(ms);
}

static void report(FILE *json, enum way way, int32_t rows, int32_t num_sources, struct timing time)
{
    printf("%-6s %5d %7d %9.2f %9.2f %9.2f\n", way_names[way], rows, num_sources, 1e3f * time.least, 1e3f * time.median, 1e3f * time.most);
    if (json != NULL) {
        fprintf(json, "  {\"way\": \"%s\", \"rows\": %d, \"row_bytes\": %d, \"sources\": %d, \"us_min\": %.3f, \"us\": %.3f, \"us_max\": %.3f, \"runs\": %d}",
                way_names[way], rows, ROW_BYTES, num_sources, 1e3f * time.least, 1e3f * time.median, 1e3f * time.most, RUNS);
    }
}

int measure_latency(FILE *json, int32_t num_sms)
{
    static const int32_t sizes[] = {128, 1024, 8192};
    const char *before = "";
    printf("\nuntil rank 0 has its rows of %d bytes\n%-6s %5s %7s %9s %9s %9s\n", ROW_BYTES, "", "rows", "sources", "us least", "median", "most");
    fill_tokens(ROW_BYTES);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int32_t num_sources = 1; num_sources < num_ranks; num_sources++) {
            make_minibatch(sizes[i], num_sources);
            if (count_bad(PULL, ROW_BYTES, num_sms) + count_bad(SEND, ROW_BYTES, num_sms) > 0) {
                printf("%d rows of %d sources: wrong words\n", sizes[i], num_sources);
                return 1;
            }
            for (int way = 0; way < NUM_WAYS; way++) {
                if (json != NULL) {
                    fprintf(json, "%s", before);
                    before = ",\n";
                }
                report(json, (enum way)way, sizes[i], num_sources, time_way((enum way)way, num_sources, num_sms));
            }
        }
    }
    return 0;
}
