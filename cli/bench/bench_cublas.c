/*
 * cuBLAS through dlopen. Only the four functions that are called are declared here, as its binary interface has had them since
 * version 11.
 */
#include "bench/bench_cublas.h"

#include <dlfcn.h>
#include <library_types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Values of cublasOperation_t, cublasComputeType_t and cublasGemmAlgo_t. */
enum { OP_AS_IS = 0, OP_TRANSPOSED = 1, COMPUTE_FP32 = 68, ALGORITHM_DEFAULT = -1 };

struct mok_bench_cublas {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*get_version)(void *handle, int *version);
    int (*set_stream)(void *handle, void *stream);
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, cudaDataType type_a, int ld_a,
                const void *b, cudaDataType type_b, int ld_b, const void *beta, void *c, cudaDataType type_c, int ld_c, int compute,
                int algorithm);
};

/* ---- finding ------------------------------------------------------------------------------------------------------------ */

/* Loading from a FIFO would wait for its writer. A name without a slash is looked for in the loader's folders. */
static int is_loadable(const char *name)
{
    struct stat about;
    return strchr(name, '/') == NULL || (stat(name, &about) == 0 && S_ISREG(about.st_mode));
}

/* A file that the user names is the only one that is tried. */
static mok_status open_library(void **library_out)
{
    const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so", "/usr/local/cuda/lib64/libcublas.so",
                                 "/usr/local/cuda/lib/libcublas.so"};
    const char *given = getenv("MOK_CUBLAS");
    *library_out = NULL;
    if (given != NULL && given[0] != '\0') {
        *library_out = is_loadable(given) ? dlopen(given, RTLD_NOW | RTLD_LOCAL) : NULL;
        return *library_out != NULL ? MOK_OK
                                    : mok_cli_fail(MOK_ERR_ARGUMENT, "MOK_CUBLAS is '%s': no library can be loaded from there", mok_cli_quote(given));
    }
    for (size_t idx = 0; idx < sizeof names / sizeof names[0] && *library_out == NULL; idx++) {
        *library_out = dlopen(names[idx], RTLD_NOW | RTLD_LOCAL);
    }
    return *library_out != NULL ? MOK_OK : mok_cli_fail(MOK_ERR_UNSUPPORTED, "libcublas.so was not found (MOK_CUBLAS names a file)");
}

/* A function's address, as POSIX has it: through an object pointer. */
static int find_function(void *library, const char *name, void *function_out)
{
    void *address = dlsym(library, name);
    memcpy(function_out, &address, sizeof address);
    return address != NULL;
}

mok_status mok_bench_cublas_find(const struct mok_bench_cublas **cublas_out)
{
    static struct mok_bench_cublas found;
    void *library = NULL; /* stays open: threads of cuBLAS may outlive any handle */
    MOK_TRY(open_library(&library));
    if (!find_function(library, "cublasCreate_v2", &found.create) || !find_function(library, "cublasDestroy_v2", &found.destroy) ||
        !find_function(library, "cublasGetVersion_v2", &found.get_version) ||
        !find_function(library, "cublasSetStream_v2", &found.set_stream) || !find_function(library, "cublasGemmEx", &found.gemm)) {
        return mok_cli_fail(MOK_ERR_UNSUPPORTED, "libcublas.so has not the functions that are needed: %s", dlerror());
    }
    *cublas_out = &found;
    return MOK_OK;
}

/* ---- multiplying -------------------------------------------------------------------------------------------------------- */

static mok_status check_cublas(int status, const char *what)
{
    return status == 0 ? MOK_OK : mok_cli_fail(MOK_ERR_DEVICE, "%s: cuBLAS status %d", what, status);
}

mok_status mok_bench_cublas_open(const struct mok_bench_cublas *cublas, void *stream, struct mok_bench_dense_gpu *dense_out,
                                 int *version_out)
{
    void *handle;
    MOK_TRY(check_cublas(cublas->create(&handle), "handle"));
    dense_out->cublas = cublas;
    dense_out->handle = handle;
    MOK_TRY(check_cublas(cublas->get_version(handle, version_out), "version"));
    return check_cublas(cublas->set_stream(handle, stream), "stream");
}

void mok_bench_cublas_close(struct mok_bench_dense_gpu *dense)
{
    if (dense->cublas != NULL) {
        (void)dense->cublas->destroy(dense->handle);
    }
    dense->cublas = NULL;
}

/* cuBLAS counts columns first: a row-major [m, n] is its n x m. */
mok_status mok_bench_cublas_multiply(const struct mok_bench_dense_gpu *dense, const struct mok_bench_product *product)
{
    const float one = 1.0f, zero = 0.0f;
    int m = (int)product->m, n = (int)product->n, k = (int)product->k;
    if (m == 0 || n == 0 || k == 0) {
        return MOK_OK;
    }
    if (product->form == MOK_BENCH_WEIGHT_GRADIENT) {
        return check_cublas(dense->cublas->gemm(dense->handle, OP_AS_IS, OP_TRANSPOSED, n, m, k, &one, dense->b, CUDA_R_16BF, n, dense->a,
                                                CUDA_R_16BF, m, &one, dense->grad, CUDA_R_32F, n, COMPUTE_FP32, ALGORITHM_DEFAULT),
                            "weight gradient");
    }
    int is_as_is = product->form == MOK_BENCH_BY_TRANSPOSED_WEIGHT;
    return check_cublas(dense->cublas->gemm(dense->handle, is_as_is ? OP_AS_IS : OP_TRANSPOSED, OP_AS_IS, n, m, k, &one, dense->weight,
                                            CUDA_R_16BF, is_as_is ? n : k, dense->a, CUDA_R_16BF, k, &zero, dense->b, CUDA_R_16BF, n,
                                            COMPUTE_FP32, ALGORITHM_DEFAULT),
                        "product");
}
