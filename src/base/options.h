/*
 * The options table: one entry per field of mok_group_config that a user may set by name. It feeds the defaults and the MOK_* environment
 * variables of mok_group_config_init, mok_option_set, `mok --help`, and the range checks of mok_group_create.
 */
#ifndef MOK_BASE_OPTIONS_H
#define MOK_BASE_OPTIONS_H

#include <mok/mok.h>

/* MOK_ERR_ARGUMENT, with field, value and rule, for the first field of the table that lies outside its range. */
mok_status mok_base_options_check(const mok_group_config *config);

/* A value of an option as text: the word of a choice ("cuda") or of a special number ("all"), else, and when name is NULL, the number. */
void mok_base_option_print(const char *name, int64_t value, char *text, size_t size);

#endif
