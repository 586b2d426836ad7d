/*
 * The same program as C++17: the header compiles, the functions link, the numbers are the same.
 */
static_assert(__cplusplus >= 201703L, "compiled as C++17 or later");

#include "consumer.c"
