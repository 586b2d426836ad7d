/*
 * The worst of each check: keeping it, merging it, saying it.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ref/compare.h"

static const char *const check_names[MOK_CHECK_COUNT] = {
    [MOK_CHECK_Y_L2] = "y l2",
    [MOK_CHECK_Y_LARGEST] = "y largest",
    [MOK_CHECK_DX_L2] = "dx l2",
    [MOK_CHECK_DX_LARGEST] = "dx largest",
    [MOK_CHECK_Y] = "y",
    [MOK_CHECK_DX] = "dx",
    [MOK_CHECK_DW] = "dw",
    [MOK_CHECK_DSHARED_W] = "dshared_w",
    [MOK_CHECK_DGATE] = "dgate",
    [MOK_CHECK_DUP] = "dup",
    [MOK_CHECK_DDOWN] = "ddown",
    [MOK_CHECK_SHARED_DGATE] = "shared dgate",
    [MOK_CHECK_SHARED_DUP] = "shared dup",
    [MOK_CHECK_SHARED_DDOWN] = "shared ddown",
    [MOK_CHECK_Y_SUM] = "y sum",
    [MOK_CHECK_DX_SUM] = "dx sum",
    [MOK_CHECK_DX_SINGLE] = "dx single",
    [MOK_CHECK_Y_SLOT] = "y slot",
    [MOK_CHECK_DX_SLOT] = "dx slot",
};

const char *mok_ref_check_name(enum mok_ref_check check) { return check_names[check]; }

void mok_ref_report_clear(struct mok_ref_report *report) { memset(report, 0, sizeof *report); }

void mok_ref_report_note(struct mok_ref_report *report, enum mok_ref_check check, struct mok_ref_spot spot, double error, double bound,
                         double got, double expected)
{
    struct mok_ref_worst *worst = &report->worst[check];
    /* NaN errors and NaN bounds fail: every comparison that lets a result pass must be true. */
    double ratio = error == 0.0 ? 0.0 : error > 0.0 && bound > 0.0 ? error / bound : INFINITY;
    worst->num_checked++;
    worst->num_failed += !(ratio <= 1.0);
    if (worst->num_checked == 1 || ratio > worst->ratio) {
        worst->ratio = ratio;
        worst->rank = spot.rank;
        worst->row = spot.row;
        worst->inner = spot.inner;
        worst->column = spot.column;
        worst->got = got;
        worst->expected = expected;
        worst->bound = bound;
    }
}

void mok_ref_report_merge(struct mok_ref_report *into, const struct mok_ref_report *from)
{
    for (int i = 0; i < MOK_CHECK_COUNT; i++) {
        struct mok_ref_worst kept = into->worst[i];
        const struct mok_ref_worst *other = &from->worst[i];
        if (kept.num_checked == 0 || (other->num_checked > 0 && other->ratio > kept.ratio)) {
            into->worst[i] = *other;
        }
        into->worst[i].num_checked = kept.num_checked + other->num_checked;
        into->worst[i].num_failed = kept.num_failed + other->num_failed;
        into->worst[i].num_left_out = kept.num_left_out + other->num_left_out;
    }
}

int64_t mok_ref_report_failures(const struct mok_ref_report *report)
{
    int64_t failures = 0;
    for (int i = 0; i < MOK_CHECK_COUNT; i++) {
        failures += report->worst[i].num_failed;
    }
    return failures;
}

static int is_matrix(enum mok_ref_check check) { return check >= MOK_CHECK_DGATE && check <= MOK_CHECK_SHARED_DDOWN; }

void mok_ref_report_describe(const struct mok_ref_report *report, enum mok_ref_check check, char *text, size_t size)
{
    const struct mok_ref_worst *worst = &report->worst[check];
    char place[128];
    if (worst->num_checked == 0) {
        snprintf(text, size, "%s: nothing to check", check_names[check]);
        return;
    }
    int used = snprintf(place, sizeof place, "rank %d, %s %lld", worst->rank, is_matrix(check) ? "expert" : "token", (long long)worst->row);
    if (worst->inner >= 0) {
        used += snprintf(place + used, sizeof place - (size_t)used, ", %s %lld", is_matrix(check) ? "row" : "k", (long long)worst->inner);
    }
    if (worst->column >= 0) {
        snprintf(place + used, sizeof place - (size_t)used, ", column %lld", (long long)worst->column);
    }
    snprintf(text, size, "%s: %lld of %lld failed (%lld left out); worst %s: %.9g, expected %.9g, bound %.3g, error/bound %.4g",
             check_names[check], (long long)worst->num_failed, (long long)worst->num_checked, (long long)worst->num_left_out, place,
             worst->got, worst->expected, worst->bound, worst->ratio);
}
