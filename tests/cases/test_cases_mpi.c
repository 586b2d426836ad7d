/*
 * The cases of the table that have as many ranks as mpirun started processes: each process is one rank, and checks its own tokens
 * and experts.
 *
 *   mpirun -n 2 test_cases_mpi [NAME]
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "case/case_list.h"
#include "case/case_run.h"
#include "cpu_hooks.h"

static void print_failure(const struct mok_ref_case *recipe, const struct mok_case_where *where, const struct mok_case_result *result)
{
    printf("FAILED %s on rank %d: %s %s; %lld differences, the first: %s\n", recipe->name, where->rank,
           mok_status_name(result->status), result->status == MOK_OK ? "ran" : result->message, (long long)result->num_differences, result->difference);
    for (int i = 0; i < MOK_CHECK_COUNT; i++) {
        char text[512];
        mok_ref_report_describe(&result->report, i, text, sizeof text);
        if (result->report.worst[i].num_failed > 0) {
            printf("    %s\n", text);
        }
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct mok_case_where where = {.backend = MOK_BACKEND_CPU, .ranks = MOK_CASE_MPI, .poison = poison_workspace};
    int size = 0, num_cases = 0, counts[2] = {0, 0}, sums[2] = {0, 0}; /* failed, skipped */
    int threads = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &where.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int c = 0; c < mok_ref_case_count(); c++) {
        const struct mok_ref_case *recipe = mok_ref_case_get(c);
        struct mok_case_result result;
        int is_wanted = argc < 2 || strstr(recipe->name, argv[1]) != NULL;
        if (recipe->num_ranks != size || recipe->slow || !is_wanted || !mok_case_is_listed(recipe, &where)) {
            continue;
        }
        mok_case_run(recipe, &where, &result);
        num_cases++;
        counts[0] += !mok_case_passed(&result) && !mok_case_skipped(&result);
        counts[1] += mok_case_skipped(&result);
        if (!mok_case_passed(&result) && !mok_case_skipped(&result)) {
            print_failure(recipe, &where, &result);
        }
    }
    MPI_Allreduce(counts, sums, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (where.rank == 0) {
        printf("%d cases on %d ranks: %d failures, %d skips\n", num_cases, size, sums[0], sums[1] / size);
    }
    MPI_Finalize();
    return sums[0] > 0 || sums[1] == num_cases * size;
}
