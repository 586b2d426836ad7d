/*
 * The commands of the tool; each stands in a file of its own.
 */
#ifndef MOK_CLI_COMMANDS_H
#define MOK_CLI_COMMANDS_H

#include "command_line.h"

extern const struct mok_cli_command mok_command_run;
extern const struct mok_cli_command mok_command_verify;
extern const struct mok_cli_command mok_command_info;
extern const struct mok_cli_command mok_command_bench;
extern const struct mok_cli_command mok_command_trace;

#endif
