/*
 * The safetensors reader: what it accepts, and one refusal for every rule, with the words that the sentence must hold.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "files/safetensors.h"

/* A file in memory: length word, header, data_bytes bytes 0, 1, 2, ... */
struct image {
    unsigned char bytes[4096];
    size_t size;
};

static struct image make_image(const char *header, size_t data_bytes)
{
    struct image image = {.size = 8 + strlen(header) + data_bytes};
    assert_true(image.size <= sizeof image.bytes);
    for (int idx = 0; idx < 8; idx++) {
        image.bytes[idx] = (unsigned char)((uint64_t)strlen(header) >> 8 * idx);
    }
    memcpy(image.bytes + 8, header, strlen(header));
    for (size_t idx = 0; idx < data_bytes; idx++) {
        image.bytes[8 + strlen(header) + idx] = (unsigned char)idx;
    }
    return image;
}

/* A copy of exactly `size` bytes, so that a sanitizer sees a read behind the end. */
static mok_status open_exact(const unsigned char *bytes, size_t size, struct mok_safetensors **file_out, unsigned char **copy_out)
{
    *copy_out = malloc(size == 0 ? 1 : size);
    memcpy(*copy_out, bytes, size);
    return mok_safetensors_open_memory(*copy_out, size, "f", file_out);
}

static void check_refused(const char *header, size_t data_bytes, const char *words)
{
    struct image image = make_image(header, data_bytes);
    struct mok_safetensors *file = (struct mok_safetensors *)&image;
    unsigned char *copy;
    mok_status status = open_exact(image.bytes, image.size, &file, &copy);
    if (status != MOK_ERR_IO || strstr(mok_cli_sentence(), words) == NULL) {
        fail_msg("header %s: status %d, sentence \"%s\" without \"%s\"", header, (int)status, mok_cli_sentence(), words);
    }
    assert_ptr_equal(file, (struct mok_safetensors *)&image); /* written on success only */
    free(copy);
}

static void test_accepts(void **state)
{
    (void)state;
    struct image image = make_image("{\"__metadata__\":{\"a\":\"b\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[6,14]},"
                                    "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                                    "\"scalar\":{\"shape\":[],\"dtype\":\"I64\",\"data_offsets\":[14,22]},"
                                    "\"none\":{\"dtype\":\"U8\",\"shape\":[0,5],\"data_offsets\":[6,6]},"
                                    "\"half \\u00e9\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[22,25]}}   ",
                                    25);
    struct mok_safetensors *file;
    unsigned char *copy;
    assert_int_equal(open_exact(image.bytes, image.size, &file, &copy), MOK_OK);
    assert_int_equal(mok_safetensors_count(file), 5);
    const struct mok_file_tensor *b = mok_safetensors_find(file, "b");
    assert_non_null(b);
    assert_int_equal(b->type, MOK_FILE_F32);
    assert_int_equal(b->num_dims, 2);
    assert_int_equal(b->dims[0], 2);
    assert_int_equal(b->bytes, 8);
    assert_int_equal(*(const unsigned char *)b->data, 6);
    assert_int_equal(mok_safetensors_find(file, "scalar")->num_dims, 0);
    assert_int_equal(mok_safetensors_find(file, "none")->bytes, 0);
    assert_non_null(mok_safetensors_find(file, "half \xc3\xa9"));
    assert_null(mok_safetensors_find(file, "c"));
    assert_null(mok_safetensors_find(file, "__metadata__"));
    mok_safetensors_close(file);
    free(copy);
    image = make_image("{}", 0);
    assert_int_equal(open_exact(image.bytes, image.size, &file, &copy), MOK_OK);
    assert_int_equal(mok_safetensors_count(file), 0);
    assert_null(mok_safetensors_find(file, "x"));
    mok_safetensors_close(file);
    mok_safetensors_close(NULL);
    free(copy);
}

#define ONE(members) "{\"t\":{" members "}}"

static void test_refuses_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *words;
    } cases[] = {
        {ONE("\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, "tensor \"t\": dtype \"F33\" is not known"},
        {ONE("\"shape\":[1],\"data_offsets\":[0,4]"), 4, "tensor \"t\": dtype is missing"},
        {ONE("\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]"), 4, "dtype is missing or no string"},
        {ONE("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4, "shape is missing"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1]"), 4, "data_offsets is missing"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]"), 4, "no array of two numbers"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]"), 4, "no array of two numbers"},
        {ONE("\"dtype\":\"F32\",\"shape\":{\"a\":1},\"data_offsets\":[0,4]"), 4, "shape is missing or no array"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1"), 4, "header key \"x\" is not known"},
        {ONE("\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, "header key \"dtype\" is there twice"},
        {ONE("\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]"), 4, "shape[0] is no number"},
        {ONE("\"dtype\":\"F32\",\"shape\":[null],\"data_offsets\":[0,4]"), 4, "shape[0] is no number"},
        {ONE("\"dtype\":\"F32\",\"shape\":[9007199254740992],\"data_offsets\":[0,4]"), 4,
         "shape[0] is 9007199254740992: must be a whole"},
        {ONE("\"dtype\":\"F32\",\"shape\":[9007199254740993],\"data_offsets\":[0,4]"), 4, "must be a whole number below 2^53"},
        {ONE("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]"), 4, "size does not fit 64 bits"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4, "more than 8 dimensions"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), 4, "span 4 bytes, but F32 [2] needs 8"},
        {ONE("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"), 2, "12 bits of F4 are not whole bytes"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]"), 4, "begin 4 is past their end 0"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 4, "end 8 is past the 4 bytes of data"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"), 8, "begin at 4, but nothing covers the data from 0"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"), 8, "the tensors end at byte 4 of the data, the file at 8"},
        {"{}", 1, "the tensors end at byte 0"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]}}",
         5, "tensor \"b\": its data begin at 2, but the tensor before it ends at 3"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "tensor \"a\" is there twice"},
        {"{\"a\":[1]}", 0, "tensor \"a\": its header entry is no object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ must hold strings alone"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ is there twice"},
    };
    for (size_t idx = 0; idx < sizeof cases / sizeof cases[0]; idx++) {
        check_refused(cases[idx].header, cases[idx].data_bytes, cases[idx].words);
    }
}

static void test_refuses_text(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        const char *words;
    } cases[] = {
        {"", "must start with '{'"},
        {"[1]", "must start with '{'"},
        {" {}", "must start with '{'"},
        {"{} x", "padded with blanks at most"},
        {"{}\t", "padded with blanks at most"},
        {"{\"a\":", "not valid JSON"},
        {"{\"a\":tru}", "not valid JSON"},
        {"{\"a", "ends inside a string"},
        {"{\"a\\", "ends inside a string"},
        {"{\"a\\\"", "ends inside a string"},
        {"{\"a\\u0000b\":1}", "escaped NUL"},
        {"{\"a\nb\":1}", "control character"},
        {"{\"\xc0\xaf\":1}", "not UTF-8"},
        {"{\"\xed\xa0\x80\":1}", "not UTF-8"},
        {"{\"\xf4\x90\x80\x80\":1}", "not UTF-8"},
        {"{\"\xe2\x82\":1}", "not UTF-8"},
        {"{\x80}", "no character of JSON"},
        {"{\"a\":[[[[1]]]]}", "nested deeper"},
        {ONE("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]"), "number -1 must be written with digits alone"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]"), "number 1.0 must be"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1e0],\"data_offsets\":[0,4]"), "number 1e0 must be"},
        {ONE("\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]"), "number 01 must be"},
        {ONE("\"dtype\":\"F32\",\"shape\":[NaN],\"data_offsets\":[0,4]"), "not valid JSON"},
        {ONE("\"dtype\":\"F32\",\"shape\":[Infinity],\"data_offsets\":[0,4]"), "not valid JSON"},
    };
    for (size_t idx = 0; idx < sizeof cases / sizeof cases[0]; idx++) {
        check_refused(cases[idx].header, 4, cases[idx].words);
    }
    /* The nesting limit is met long before the JSON parser could run out of stack. */
    char deep[2048];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    memcpy(deep, "{\"a\":", 5);
    check_refused(deep, 0, "nested deeper");
}

static void check_bytes_refused(const void *bytes, size_t size, const char *words)
{
    struct mok_safetensors *file;
    unsigned char *copy;
    assert_int_equal(open_exact(bytes, size, &file, &copy), MOK_ERR_IO);
    if (strstr(mok_cli_sentence(), words) == NULL) {
        fail_msg("sentence \"%s\" without \"%s\"", mok_cli_sentence(), words);
    }
    free(copy);
}

static void test_refuses_containers(void **state)
{
    (void)state;
    check_bytes_refused("", 0, "the file has 0 bytes");
    check_bytes_refused("\2\0\0\0\0\0\0", 7, "the file has 7 bytes");
    check_bytes_refused("\2\0\0\0\0\0\0\0{", 9, "header length 2 is more than the 1 bytes that follow it");
    check_bytes_refused("PK\3\4\0\0\0\0{}", 10, "is more than the 2 bytes");
    check_bytes_refused("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "header length 18446744073709551615 is more than 100000000");
    check_bytes_refused("\x01\xe1\xf5\x05\0\0\0\0{}", 10, "header length 100000001 is more than 100000000");
    /* Every truncation of a good file is refused. */
    struct image image = make_image("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    for (size_t size = 0; size < image.size; size++) {
        check_bytes_refused(image.bytes, size, "f: ");
    }
}

/* What a file says is printed only after it was made harmless. */
static void test_quotes_names(void **state)
{
    (void)state;
    check_refused("{\"\xc2\x9b[2J\":{\"dtype\":\"U9\",\"shape\":[],\"data_offsets\":[0,0]}}", 0, "tensor \"??[2J\": dtype");
    char header[512];
    char name[201];
    memset(name, 'n', 200);
    name[200] = '\0';
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U9\",\"shape\":[],\"data_offsets\":[0,0]}}", name);
    name[80] = '\0';
    strcat(name, "...\": dtype");
    check_refused(header, 0, name);
}

static void test_writes_what_it_reads(void **state)
{
    (void)state;
    char path[] = "/tmp/mok_test_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    float values[6] = {1, 2, 3, 4, 5, 6};
    int64_t ids[2] = {-1, 7};
    struct mok_file_tensor tensors[3] = {
        {.name = "y \"quoted\"", .type = MOK_FILE_F32, .num_dims = 2, .dims = {2, 3}, .data = values, .bytes = sizeof values},
        {.name = "ids", .type = MOK_FILE_I64, .num_dims = 1, .dims = {2}, .data = ids, .bytes = sizeof ids},
        {.name = "empty", .type = MOK_FILE_BF16, .num_dims = 2, .dims = {0, 4}, .data = NULL, .bytes = 0},
    };
    assert_int_equal(mok_safetensors_write(path, tensors, 3, "a test"), MOK_OK);
    struct mok_safetensors *file;
    assert_int_equal(mok_safetensors_open(path, &file), MOK_OK);
    assert_int_equal(mok_safetensors_count(file), 3);
    const struct mok_file_tensor *y = mok_safetensors_find(file, "y \"quoted\"");
    assert_non_null(y);
    assert_int_equal(y->dims[1], 3);
    assert_memory_equal(y->data, values, sizeof values);
    assert_memory_equal(mok_safetensors_find(file, "ids")->data, ids, sizeof ids);
    mok_safetensors_close(file);
    unlink(path);
    assert_int_equal(mok_safetensors_open(path, &file), MOK_ERR_IO);
    assert_non_null(strstr(mok_cli_sentence(), "cannot be opened"));
    assert_int_equal(mok_safetensors_open("/tmp", &file), MOK_ERR_IO);
    assert_non_null(strstr(mok_cli_sentence(), "is no regular file"));
    assert_int_equal(mok_safetensors_write("/tmp/no/such/folder/f", tensors, 3, ""), MOK_ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),      cmocka_unit_test(test_refuses_tensors),
        cmocka_unit_test(test_refuses_text), cmocka_unit_test(test_refuses_containers),
        cmocka_unit_test(test_quotes_names), cmocka_unit_test(test_writes_what_it_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
