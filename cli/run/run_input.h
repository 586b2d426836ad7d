/*
 * What `mok run` works on: a layer and input rows from files, as a problem of the oracle's kind, and what the input file has to compare
 * with.
 *
 * The input file holds hidden_states BF16 [T,H], and may hold, to be compared with: output F32 [T,H], topk_ids I32 or I64 [T,K],
 * topk_weights F32 [T,K]; grad_output BF16 [T,H] (without it a seeded normal dy is used) and, for it, with the router's weights held
 * constant, grad_hidden_states F32 [T,H], grad_topk_weights F32 [T,K], grad_shared_weights F32 [T].
 */
#ifndef MOK_CLI_RUN_INPUT_H
#define MOK_CLI_RUN_INPUT_H

#include "files/hf_config.h"
#include "ref/problem.h"

struct mok_run_files {
    const char *weights; /* safetensors */
    const char *layer;   /* prefix; NULL = the only MoE layer of the file */
    const char *config;  /* NULL = config.json beside the weights */
    const char *input;   /* safetensors */
};

/* All NULL when the file has no such tensor. */
struct mok_run_stored {
    float *output;
    int64_t *ids;
    float *w;
    int has_dy;
    float *dx;
    float *dw;
    float *dshared_w;
};

enum { MOK_RUN_LAYER_ROOM = 512 };

struct mok_run_input {
    struct mok_hf_config config;
    char layer[MOK_RUN_LAYER_ROOM]; /* the prefix */
    struct mok_ref_problem problem;
    struct mok_run_stored stored;
};

/* num_ranks: the tokens are spread over them by mok_run_share. Errors: IO, MEMORY, ARGUMENT (from the router helper). */
mok_status mok_run_input_load(const struct mok_run_files *files, int32_t num_ranks, struct mok_run_input *input_out);
void mok_run_input_free(struct mok_run_input *input);

/* Where the model's config is read from. Errors: IO (too long). */
mok_status mok_run_config_path(const struct mok_run_files *files, char *path, size_t size);

/* Tokens of a rank: uneven on purpose, always the same; with four ranks or more, rank 1 gets none. */
int64_t mok_run_share(int64_t num_tokens, int32_t num_ranks, int32_t rank);

#endif
