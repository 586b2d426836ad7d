/*
 * Schedules of a rank: the ops of src/pass/pass.h that make, build, read and give them back.
 */
#ifndef MOK_CUDA_SCHEDULE_CUDA_H
#define MOK_CUDA_SCHEDULE_CUDA_H

#include "cuda/rank_memory.h"

mok_status mok_cuda_schedule_create(struct mok_pass_group *group, struct mok_pass_schedule **schedule_out);
void mok_cuda_schedule_destroy(struct mok_pass_schedule *schedule);
mok_status mok_cuda_schedule_build(struct mok_pass_schedule *schedule, const int32_t *ids, int64_t num_tokens, mok_stream stream);
mok_status mok_cuda_schedule_counts(struct mok_pass_schedule *schedule, mok_stream stream, int64_t *rows_out, int64_t *padded_out);
mok_status mok_cuda_schedule_dump(struct mok_pass_schedule *schedule, mok_stream stream, struct mok_schedule_head *head_out,
                                  int32_t *expert_rows_out, int32_t *expert_first_out, int32_t *tile_expert_out, int32_t *active_out,
                                  struct mok_route *routes_out);
/* Frees schedules that were given back. */
void mok_cuda_free_schedules(struct mok_pass_group *group);

#endif
