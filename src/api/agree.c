/*
 * Agreement between ranks at creation. In: this rank's verdict and values. Out: one verdict, the same kind on all ranks.
 *
 * What must be the same: the shape, the number of ranks and of saved objects, kept rows, backend and path, the library version, and the
 * size of the peer region that follows from them. Rings and workers may differ: ranks meet only at barriers and in rows, never in
 * minibatches. The peer kind is not compared: ranks of different kinds never meet.
 */
#include "api/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/status.h"

enum agree_field {
    FIELD_VERSION,
    FIELD_NUM_RANKS,
    FIELD_BACKEND,
    FIELD_NUM_EXPERTS,
    FIELD_TOP_K,
    FIELD_HIDDEN,
    FIELD_INTERMEDIATE,
    FIELD_SHARED_INTERMEDIATE,
    FIELD_FORMAT,
    FIELD_MAX_TOKENS,
    FIELD_NUM_SAVED,
    FIELD_KEEP_ROWS,
    FIELD_PATH,
    FIELD_PEER_BYTES,
    NUM_FIELDS
};

/* Name for the sentence; option whose words its values have, or NULL; what stands behind its values; 1 when the value is what the library has made of
 * the config's own: auto, all, rows that are rounded. */
static const struct {
    const char *name;
    const char *option;
    const char *unit;
    int is_made;
} fields[NUM_FIELDS] = {
    [FIELD_VERSION] = {"the library version", NULL, "", 0},
    [FIELD_NUM_RANKS] = {"config.num_ranks", NULL, "", 0},
    [FIELD_BACKEND] = {"config.backend", "backend", "", 1},
    [FIELD_NUM_EXPERTS] = {"config.shape.num_experts", NULL, "", 0},
    [FIELD_TOP_K] = {"config.shape.top_k", NULL, "", 0},
    [FIELD_HIDDEN] = {"config.shape.hidden", NULL, "", 0},
    [FIELD_INTERMEDIATE] = {"config.shape.intermediate", NULL, "", 0},
    [FIELD_SHARED_INTERMEDIATE] = {"config.shape.shared_intermediate", NULL, "", 0},
    [FIELD_FORMAT] = {"config.shape.format", NULL, "", 0},
    [FIELD_MAX_TOKENS] = {"config.shape.max_tokens", NULL, "", 0},
    [FIELD_NUM_SAVED] = {"config.num_saved", NULL, "", 0},
    [FIELD_KEEP_ROWS] = {"config.keep_rows", NULL, " rows", 1},
    [FIELD_PATH] = {"config.path", "path", "", 1},
    [FIELD_PEER_BYTES] = {"the size of peer-visible memory", NULL, " bytes", 0},
};

/* What one rank shares in one round. */
struct verdict {
    int64_t status;
    int64_t values[NUM_FIELDS];
    char sentence[256];
};

MOK_STATIC_ASSERT(sizeof(struct verdict) <= MOK_BOARD_DATA, "a verdict must fit the board");

/* Shares `mine`; *all_out [num_ranks] is the caller's to free. Returns `own`, with its sentence, when that is a failure. */
static mok_status share(struct mok_peer *peer, struct verdict *mine, mok_status own, struct verdict **all_out)
{
    struct verdict *all = calloc((size_t)peer->num_ranks, sizeof *all);
    if (all == NULL) {
        return mok_base_fail(MOK_ERR_MEMORY, "no memory for the verdicts of %" PRId32 " ranks", peer->num_ranks);
    }
    struct mok_kept kept = mok_base_keep(own);
    mine->status = own;
    if (own != MOK_OK) {
        snprintf(mine->sentence, sizeof mine->sentence, "%.*s", (int)sizeof mine->sentence - 1, kept.text);
    }
    mok_status status = peer->ops->allgather(peer, mine, sizeof *mine, all);
    if (own != MOK_OK) {
        /* It knows why it failed, whether or not the others heard of it. */
        free(all);
        return mok_base_repeat_kept(&kept);
    }
    if (status != MOK_OK) {
        free(all);
        return status;
    }
    *all_out = all;
    return MOK_OK;
}

/* Behind "rank 2: " in front. */
static const char *without_rank(const char *sentence, int32_t rank)
{
    char own[32];
    int length = snprintf(own, sizeof own, "rank %" PRId32 ": ", rank);
    return strncmp(sentence, own, (size_t)length) == 0 ? sentence + length : sentence;
}

/* The failure of the lowest failing rank. */
static mok_status judge(const struct mok_peer *peer, struct verdict *all)
{
    for (int32_t rank = 0; rank < peer->num_ranks; rank++) {
        if (all[rank].status != MOK_OK) {
            all[rank].sentence[sizeof all[rank].sentence - 1] = '\0';
            return mok_base_fail((mok_status)all[rank].status, "rank %" PRId32 " could not create the group: %s", rank,
                                 without_rank(all[rank].sentence, rank));
        }
    }
    return MOK_OK;
}

mok_status mok_api_agree_success(struct mok_peer *peer, mok_status own)
{
    struct verdict mine, *all = NULL;
    memset(&mine, 0, sizeof mine);
    MOK_TRY(share(peer, &mine, own, &all));
    mok_status status = judge(peer, all);
    free(all);
    return status;
}

static void fill_values(const mok_group_config *config, const struct mok_pass_setup *setup, int64_t *values)
{
    values[FIELD_VERSION] = MOK_VERSION;
    values[FIELD_NUM_RANKS] = setup->dims.num_ranks;
    values[FIELD_BACKEND] = config->backend;
    values[FIELD_NUM_EXPERTS] = setup->dims.num_experts;
    values[FIELD_TOP_K] = setup->dims.top_k;
    values[FIELD_HIDDEN] = setup->dims.hidden;
    values[FIELD_INTERMEDIATE] = setup->dims.inter;
    values[FIELD_SHARED_INTERMEDIATE] = setup->dims.shared_inter;
    values[FIELD_FORMAT] = config->shape.format;
    values[FIELD_MAX_TOKENS] = setup->dims.max_tokens;
    values[FIELD_NUM_SAVED] = setup->num_saved;
    values[FIELD_KEEP_ROWS] = setup->ring_forward.keep_rows;
    values[FIELD_PATH] = setup->path;
    values[FIELD_PEER_BYTES] = setup->region.bytes;
}

static mok_status compare(const struct mok_peer *peer, const struct verdict *all)
{
    for (int field = 0; field < NUM_FIELDS; field++) {
        for (int32_t rank = 1; rank < peer->num_ranks; rank++) {
            if (all[rank].values[field] != all[0].values[field]) {
                char here[32], there[32];
                mok_base_option_print(fields[field].option, all[0].values[field], here, sizeof here);
                mok_base_option_print(fields[field].option, all[rank].values[field], there, sizeof there);
                return mok_base_fail(MOK_ERR_DISAGREE, "%s %s %s%s on rank 0 and %s%s on rank %" PRId32 ": must be the same on all ranks",
                                     fields[field].name, fields[field].is_made ? "comes to" : "is", here, fields[field].unit, there,
                                     fields[field].unit, rank);
            }
        }
    }
    return MOK_OK;
}

mok_status mok_api_agree_setup(struct mok_peer *peer, const mok_group_config *config, const struct mok_pass_setup *setup,
                               mok_status own)
{
    struct verdict mine, *all = NULL;
    memset(&mine, 0, sizeof mine);
    if (own == MOK_OK) {
        fill_values(config, setup, mine.values);
    }
    MOK_TRY(share(peer, &mine, own, &all));
    mok_status status = judge(peer, all);
    if (status == MOK_OK) {
        status = compare(peer, all);
    }
    free(all);
    return status;
}
