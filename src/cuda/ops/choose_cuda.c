/*
 * Path, workers, ring and minibatch that a group gets where the caller leaves them open. In: config, sizes, what the device is like. No device memory
 * is touched.
 */
#include "cuda/ops/ops_cuda.h"

#include "base/status.h"
#include "cuda/device.h"
#include "cuda/fused/fused.h"

enum {
    ASSUMED_SMS = 132, /* where there is no GPU: mok_group_memory then answers for an H200 */
    RING_SHARE = 8     /* an automatic ring takes at most this part of the device's memory: eight ranks may share a GPU */
};

#define ASSUMED_MEMORY ((uint64_t)140 << 30)

/* One lap over all rows that there can be, where memory allows; the fused forward pass has its own choice. */
static void choose_ring(const mok_group_config *config, const struct mok_pass_setup *setup, int backward, uint64_t limit, struct mok_ring *ring)
{
    int64_t most = mok_plan_max_rows_any(&setup->dims);
    int64_t rows = config->minibatch_rows;
    if (rows == 0) {
        rows = backward && setup->path == MOK_PATH_FUSED ? mok_cuda_fused_backward_rows(setup)
                                                         : mok_plan_minibatch_rows(&setup->dims, setup->compute_workers, backward);
    }
    ring->minibatch_rows = mok_min64(rows, most);
    int64_t needed = mok_ceil_div(most, ring->minibatch_rows);
    int64_t affordable_rows = (int64_t)(limit / (uint64_t)mok_cuda_ring_row_bytes(&setup->dims, setup->num_saved > 0));
    int64_t affordable = mok_max64(affordable_rows / ring->minibatch_rows, 1);
    int64_t places = config->ring_minibatches > 0 ? config->ring_minibatches : affordable;
    ring->num_places = (int32_t)mok_min64(places, needed);
    ring->look_ahead = (int32_t)mok_min64(config->look_ahead > 0 ? config->look_ahead : 1, ring->num_places - 1);
}

mok_status mok_cuda_choose(const mok_group_config *config, struct mok_pass_setup *setup)
{
    struct mok_cuda_device_facts facts = {config->device, ASSUMED_SMS, ASSUMED_MEMORY};
    if (mok_cuda_probe() == MOK_OK) {
        MOK_TRY(mok_cuda_device_facts(config->device, &facts));
    }
    if (setup->dims.num_experts > MOK_CUDA_MAX_EXPERTS) {
        return mok_base_fail(MOK_ERR_UNSUPPORTED, "shape.num_experts is %d: the cuda backend sorts at most %d", setup->dims.num_experts,
                             MOK_CUDA_MAX_EXPERTS);
    }
    if (config->reserve_sms >= facts.num_sms) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "config.reserve_sms is %d: the device has %d", config->reserve_sms, facts.num_sms);
    }
    int32_t sms = facts.num_sms - config->reserve_sms;
    setup->device = facts.ordinal;
    setup->path = config->path == MOK_PATH_STAGED ? MOK_PATH_STAGED : MOK_PATH_FUSED; /* AUTO: fused was faster in all passes measured */
    setup->comm_workers = config->comm_workers > 0 ? (int32_t)mok_min64(config->comm_workers, sms) : sms;
    setup->compute_workers = config->compute_workers > 0 ? (int32_t)mok_min64(config->compute_workers, sms) : sms;
    uint64_t limit = facts.memory_bytes / RING_SHARE;
    choose_ring(config, setup, 0, limit, &setup->ring_forward);
    choose_ring(config, setup, 1, limit, &setup->ring_backward);
    if (setup->path == MOK_PATH_FUSED) {
        mok_cuda_fused_choose_ring(config, setup, &setup->ring_forward);
    }
    return MOK_OK;
}
