/*
 * Routes by expert: one scan per expert, so slow and so simple that it needs no test of its own.
 */
#include "ref/runs.h"

#include <stdlib.h>
#include <string.h>

mok_status mok_ref_runs_make(const struct mok_ref_problem *problem, struct mok_ref_runs *runs_out)
{
    int64_t routes = problem->num_tokens * problem->top_k;
    int64_t num = 0;
    runs_out->first = malloc(((size_t)problem->num_experts + 1) * sizeof(int64_t));
    runs_out->route = malloc(((size_t)routes + 1) * sizeof(int64_t));
    runs_out->token = malloc(((size_t)routes + 1) * sizeof(int64_t));
    runs_out->longest = 0;
    if (runs_out->first == NULL || runs_out->route == NULL || runs_out->token == NULL) {
        mok_ref_runs_free(runs_out);
        return MOK_ERR_MEMORY;
    }
    for (int32_t e = 0; e < problem->num_experts; e++) {
        runs_out->first[e] = num;
        for (int64_t route = 0; route < routes; route++) {
            if (problem->ids[route] == e) {
                runs_out->route[num] = route;
                runs_out->token[num] = route / problem->top_k;
                num++;
            }
        }
        runs_out->longest = num - runs_out->first[e] > runs_out->longest ? num - runs_out->first[e] : runs_out->longest;
    }
    runs_out->first[problem->num_experts] = num;
    return MOK_OK;
}

void mok_ref_runs_free(struct mok_ref_runs *runs)
{
    free(runs->first);
    free(runs->route);
    free(runs->token);
    memset(runs, 0, sizeof *runs);
}
