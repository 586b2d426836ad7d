/*
 * mok bench: time of a layer's forward and backward pass, beside the same products as dense ones, in the same run. The backends measure
 * for themselves (bench/bench_host.c, bench/bench_device.c): a GPU is timed by its own events, and has floors and stages to show.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_device.h"
#include "bench/bench_gemm.h"
#include "bench/bench_host.h"
#include "bench/bench_points.h"
#include "commands.h"
#include "group_config.h"
#include "output_file.h"

enum { HOST_RANKS = 2 };

static const struct mok_cli_option bench_options[] = {
    {"shape", MOK_CLI_TEXT, offsetof(struct mok_bench_settings, shape_name), "NAME",
     "Sizes by name: qwen3-30b, mixtral-8x7b, tiny-real; kimi-k2, glm-5.2, qwen3.5, deepseek-v4-pro, each also with -slice.", 0, 0},
    MOK_SHAPE_OPTIONS(struct mok_bench_settings, MOK_SHAPE_MAX_RANKS),
    {"skew", MOK_CLI_TEXT, offsetof(struct mok_bench_settings, skew_word), "KIND",
     "Which experts tokens choose: balanced (default), zipf (1/rank), hot (expert 0 always) or real (a trained model's).", 0, 0},
    {"routes", MOK_CLI_TEXT, offsetof(struct mok_bench_settings, routes), "FILE",
     "Safetensors file with the routes of --skew real, by default data/qwen3moe-code/routing.safetensors from the current folder.", 0, 0},
    {"repeat", MOK_CLI_COUNT, offsetof(struct mok_bench_settings, num_repeats), "N", "Timed repeats.", 1, MOK_BENCH_MAX_REPEATS},
    {"warm-up", MOK_CLI_COUNT, offsetof(struct mok_bench_settings, num_warmups), "N", "Repeats before them that are not timed.", 0,
     MOK_BENCH_MAX_REPEATS},
    {"zero-copy", MOK_CLI_FLAG, offsetof(struct mok_bench_settings, is_zero_copy), NULL,
     "CUDA: time forward also with x where peers find it before the pass begins; a sweep only so.", 0, 0},
    {"no-stages", MOK_CLI_FLAG, offsetof(struct mok_bench_settings, has_no_stages), NULL, "CUDA: only the layer, not each stage alone.", 0, 0},
    {"sweep", MOK_CLI_TEXT, offsetof(struct mok_bench_settings, sweep), "POINTS",
     "CUDA: time one pass at points of group options instead: NAME=VALUE,...;NAME=VALUE,...", 0, 0},
    {"pass", MOK_CLI_TEXT, offsetof(struct mok_bench_settings, pass_word), "PASS", "Which pass a sweep times: forward (default) or backward.", 0, 0},
    {"confirm", MOK_CLI_COUNT, offsetof(struct mok_bench_settings, num_confirms), "N",
     "A sweep then runs its three fastest points and the options as given N times in turn.", 0, MOK_BENCH_MAX_REPEATS},
    {"summary", MOK_CLI_FLAG, offsetof(struct mok_bench_settings, is_traced), NULL,
     "A sweep also says, point by point, what each role of the persistent kernel did and waited for.", 0, 0},
    {"timeline", MOK_CLI_TEXT, offsetof(struct mok_bench_settings, timeline), "FILE",
     "A sweep writes the timeline of its last point, .json or .svg.", 0, 0},
    {"ctas", MOK_CLI_COUNT, offsetof(struct mok_bench_settings, cta_step), "N", "Only every N-th CTA in that timeline.", 1, 1 << 16},
    {"json", MOK_CLI_TEXT, offsetof(struct mok_bench_settings, json), "FILE",
     "Write the same as JSON; - is standard output, without the text.", 0, 0},
    {"commit", MOK_CLI_TEXT, offsetof(struct mok_bench_settings, commit), "TEXT", "Commit for the JSON, where git cannot be asked.", 0,
     0},
};

static const struct mok_bench_settings bench_initial = {
    .shape = {.experts = MOK_BENCH_NOT_GIVEN,
              .top_k = MOK_BENCH_NOT_GIVEN,
              .hidden = MOK_BENCH_NOT_GIVEN,
              .inter = MOK_BENCH_NOT_GIVEN,
              .shared_inter = MOK_BENCH_NOT_GIVEN,
              .tokens = MOK_BENCH_NOT_GIVEN,
              .num_ranks = MOK_BENCH_NOT_GIVEN},
    .num_repeats = MOK_BENCH_NOT_GIVEN,
    .num_warmups = MOK_BENCH_NOT_GIVEN,
    .num_confirms = MOK_BENCH_NOT_GIVEN,
    .cta_step = MOK_BENCH_NOT_GIVEN,
};

static mok_status measure(struct mok_bench_settings *settings, mok_group_config *config, int is_cuda, struct mok_team *team)
{
    int32_t num_ranks = HOST_RANKS;
#ifdef MOK_HAVE_CUDA
    num_ranks = is_cuda ? mok_bench_device_count() : HOST_RANKS;
    num_ranks = num_ranks > MOK_SHAPE_MAX_RANKS ? MOK_SHAPE_MAX_RANKS : num_ranks;
#endif
    MOK_TRY(mok_bench_check_options(settings, is_cuda ? MOK_BENCH_DEVICE : MOK_BENCH_HOST));
    MOK_TRY(settings->sweep == NULL ? MOK_OK : mok_bench_check_points(settings->sweep, config));
    MOK_TRY(mok_config_check_backend(config));
    MOK_TRY(mok_bench_resolve(settings, is_cuda, num_ranks));
    if (mok_output_overwrites(settings->json, settings->routes)) {
        return mok_cli_fail(MOK_ERR_ARGUMENT, "--json would overwrite the file of --routes, %s", settings->routes);
    }
    MOK_TRY(mok_config_check_saved(config));
    MOK_TRY(mok_shape_check(&settings->shape, config));
    MOK_TRY(mok_output_check(settings->json));
    MOK_TRY(mok_output_check(settings->timeline));
    MOK_TRY(mok_team_open(config, settings->shape.num_ranks, team));
    mok_config_warn_workers(config, team->num_ranks);
#ifdef MOK_HAVE_CUDA
    if (is_cuda) {
        return mok_bench_device(settings, team);
    }
#endif
    return mok_bench_host(settings, team);
}

/* The products of a layer alone, on one GPU. */
static mok_status measure_gemms(const struct mok_bench_settings *settings, const mok_group_config *config)
{
    MOK_TRY(mok_bench_check_options(settings, MOK_BENCH_GEMMS));
    MOK_TRY(mok_cli_refuse_group(NULL, "does not go with 'gemm'"));
    MOK_TRY(mok_output_check(settings->json));
#ifdef MOK_HAVE_CUDA
    return mok_bench_gemms(settings, config);
#else
    (void)config;
    return mok_cli_fail(MOK_ERR_NOT_BUILT, "this build has no CUDA backend");
#endif
}

static int bench_command(void *given, mok_group_config *config, int num_names, char **names)
{
    struct mok_bench_settings *settings = given;
    struct mok_team team;
    memset(&team, 0, sizeof team);
    int is_gemm = num_names == 1 && strcmp(names[0], "gemm") == 0;
    if (num_names > 0 && !is_gemm) {
        return mok_cli_usage(&mok_command_bench, "argument '%s' is not expected", mok_cli_quote(names[num_names - 1]));
    }
    if (config->peer != MOK_PEER_THREADS) {
        return mok_cli_usage(&mok_command_bench, "%s is %s: must be threads, for the dense products need all cores of this process", mok_cli_setter("peer"),
                             mok_config_peer_name(config));
    }
    int is_cuda = mok_config_is_cuda(config);
    mok_status status = is_gemm ? measure_gemms(settings, config) : measure(settings, config, is_cuda, &team);
    int code = mok_cli_end(&mok_command_bench, status, 1);
    mok_team_close(&team);
    return code;
}

static const struct mok_cli_useless bench_useless[] = {{"device", MOK_CLI_WHY_NO_DEVICE}};

const struct mok_cli_command mok_command_bench = {
    .name = "bench",
    .summary = "time forward and backward of a shape beside dense products of the same sizes",
    .positional = "[gemm]",
    .about =
        "Times a layer with random data. Beside it, in the same run, stand the layer's products as dense ones.\n"
        "CPU: host clock; cblas_sgemm on all cores, one call after another, operands already fp32; 5 repeats after 1; 2 ranks.\n"
        "CUDA: device events; cuBLAS bf16, memory and link floors; the fused path and beside it the staged one with each of its stages, or\n"
        "with --path staged that one alone; 30 repeats after 10; a rank a GPU.\n"
        "Sizes without a name: 32 experts, top 4, hidden 1024, intermediate 512, 2048 tokens on each rank.\n"
        "'mok bench gemm' times each grouped GEMM of a layer alone on one GPU, beside cuBLAS, with the rows and experts of one of --ranks\n"
        "ranks: without sizes the slices, qwen3-30b, mixtral-8x7b and kimi-k2. How the GEMMs came to be what they are: bench/ladder.",
    .options = bench_options,
    .num_options = sizeof bench_options / sizeof bench_options[0],
    .settings_bytes = sizeof(struct mok_bench_settings),
    .initial = &bench_initial,
    .peers = "threads",
    .useless = bench_useless,
    .num_useless = sizeof bench_useless / sizeof bench_useless[0],
    .makes_ranks = 1,
    .run = bench_command,
};
