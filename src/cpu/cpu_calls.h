/*
 * The calls of the CPU backend: entries of mok_pass_ops (contracts in pass/pass.h) that cpu_group.c and cpu_calls.c implement.
 */
#ifndef MOK_CPU_CALLS_H
#define MOK_CPU_CALLS_H

#include "pass/pass.h"

/* cpu_group.c */
mok_status mok_cpu_create(const struct mok_pass_setup *setup, struct mok_peer *peer, struct mok_pass_group **group_out);
mok_status mok_cpu_destroy(struct mok_pass_group *group);
mok_status mok_cpu_state(struct mok_pass_group *group, mok_group_state *state_out);
mok_status mok_cpu_wait(struct mok_pass_group *group, mok_stream stream, int64_t timeout_ms);
void mok_cpu_abort(struct mok_pass_group *group);
mok_status mok_cpu_trace(struct mok_pass_group *group, int64_t max_events);
mok_status mok_cpu_trace_take(struct mok_pass_group *group, mok_event *events_out, int64_t capacity, int64_t *num_out,
                              int64_t *dropped_out);
struct mok_pass_saved *mok_cpu_saved(struct mok_pass_group *group, int32_t idx);
void *mok_cpu_saved_input(struct mok_pass_saved *saved);

/* cpu_calls.c */
mok_status mok_cpu_schedule_create(struct mok_pass_group *group, struct mok_pass_schedule **schedule_out);
void mok_cpu_schedule_destroy(struct mok_pass_schedule *schedule);
mok_status mok_cpu_schedule_build(struct mok_pass_schedule *schedule, const int32_t *ids, int64_t num_tokens, mok_stream stream);
mok_status mok_cpu_schedule_counts(struct mok_pass_schedule *schedule, mok_stream stream, int64_t *rows_out, int64_t *padded_out);
mok_status mok_cpu_schedule_dump(struct mok_pass_schedule *schedule, mok_stream stream, struct mok_schedule_head *head_out,
                                 int32_t *expert_rows_out, int32_t *expert_first_out, int32_t *tile_expert_out, int32_t *active_out,
                                 struct mok_route *routes_out);
mok_status mok_cpu_forward(struct mok_pass_group *group, const struct mok_pass_forward *pass);
mok_status mok_cpu_backward(struct mok_pass_group *group, const struct mok_pass_backward *pass);

#endif
