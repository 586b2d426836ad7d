/*
 * One rank of a small layer: group, layer, schedule, saved object and tensors, through the public API alone. The data are a problem of
 * src/ref, so that what comes out can be compared with its oracles.
 */
#ifndef MOK_FAULT_MEMBER_H
#define MOK_FAULT_MEMBER_H

#include "ref/compare.h"
#include "ref/problem.h"

struct fault_member {
    const struct mok_ref_problem *problem;
    int32_t rank;
    int64_t num_tokens;
    mok_group *group;
    mok_layer *layer;
    mok_schedule *schedule;
    mok_saved *saved;
    /* this rank's parts of the problem, aligned as the API wants them */
    int32_t *ids;
    mok_bf16 *x, *dy, *y, *dx;
    float *w, *shared_w, *dw, *dshared_w;
    struct mok_ref_grads grads, shared_grads;
};

/* Fills the parts of a configuration that the problem decides; the rest is small. */
mok_status fault_member_config(const struct mok_ref_problem *problem, int32_t rank, mok_group_config *config_out);
/* Group, layer, schedule, saved object, tensors. */
mok_status fault_member_create(struct fault_member *member, const struct mok_ref_problem *problem, const mok_group_config *config);
/* Takes another problem of the same sizes, with at most max_tokens tokens on each rank. */
void fault_member_load(struct fault_member *member, const struct mok_ref_problem *problem);
mok_status fault_member_build(struct fault_member *member);
mok_status fault_member_forward(struct fault_member *member);
mok_status fault_member_backward(struct fault_member *member);
/* Destroys everything; the status is that of mok_group_destroy. */
mok_status fault_member_destroy(struct fault_member *member);

/* Rows and elements of this rank that are outside their bounds; `text` names the worst of each check that failed. */
int64_t fault_member_compare(const struct fault_member *member, const struct mok_ref_answer *answer, char *text, size_t size);

#endif
