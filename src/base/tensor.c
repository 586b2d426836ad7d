/*
 * Pointers to tensors of the host helpers. See tensor.h.
 */
#include "base/tensor.h"

#include <inttypes.h>

#include "base/status.h"

mok_status mok_base_check_tensor(const char *name, const void *pointer, size_t element_bytes, int64_t num, const char *things)
{
    if (num == 0) {
        return MOK_OK;
    }
    if (pointer == NULL) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s is NULL: must be given with %" PRId64 " %s%s", name, num, things, num == 1 ? "" : "s");
    }
    if ((uintptr_t)pointer % element_bytes != 0) {
        return mok_base_fail(MOK_ERR_ARGUMENT, "%s is %p: must be a multiple of %zu bytes", name, pointer, element_bytes);
    }
    return MOK_OK;
}
