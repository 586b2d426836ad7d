/*
 * The command line. Each command has a table of its own options; behind it come the group options, which are the library's own table
 * (mok_option_get). The tables feed parsing, usage messages and help, so that none of them can name what the others do not know.
 *
 * "--name VALUE" and "--name=VALUE"; a flag has no value; of an option given twice the last counts; "--" ends the options. Precedence: command
 * line, MOK_* variables, defaults.
 *
 * What stands on the command line must have an effect, or the command is refused: who gives an option expects something of it. A MOK_* variable
 * may be there for other commands and programs: where an option would be refused, its variable is a warning on stderr (not with MOK_LOG=0).
 */
#ifndef MOK_CLI_COMMAND_LINE_H
#define MOK_CLI_COMMAND_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "message.h"

enum mok_cli_kind {
    MOK_CLI_FLAG,  /* int: 1 when given */
    MOK_CLI_COUNT, /* int64_t in [least, most] */
    MOK_CLI_TEXT   /* const char *: points into argv */
};

struct mok_cli_option {
    const char *name;
    enum mok_cli_kind kind;
    size_t offset;     /* of the field in the command's settings */
    const char *value; /* placeholder in help; NULL for a flag */
    const char *help;
    int64_t least, most;
};

/* Group options that are nothing to a command, whatever else it is asked for: its help leaves them out, and it refuses them. */
struct mok_cli_useless {
    const char *names; /* "ring look-ahead" */
    const char *why;   /* "each case has its own": completes "has no effect here: ..." */
};

struct mok_cli_command {
    const char *name;
    const char *summary;    /* one line for `mok --help` */
    const char *positional; /* "[NAME...]", or NULL when there is none */
    const char *about;      /* paragraph for `mok COMMAND --help` */
    const struct mok_cli_option *options;
    int num_options;
    size_t settings_bytes;
    const void *initial; /* [settings_bytes] settings before parsing */
    const char *peers;   /* values of --peer that the command takes, for its help; NULL = all of the library's */
    const char *peer_timeout; /* default of --peer-timeout where the command has its own, for its help; NULL = the library's */
    const struct mok_cli_useless *useless;
    int num_useless;
    const char *free_options; /* "ranks json": own options that may differ between processes, for only the one that prints reads them, or
                                 each checks its own; NULL = none */
    int makes_ranks;     /* 1: runs a group, and so must know whether a process is all of it or one rank */
    /* Runs the command; positional arguments follow. Returns the exit code. */
    int (*run)(void *settings, mok_group_config *config, int num_names, char **names);
};

/* What this process was started with, of one size for all commands, so that processes can compare. */
enum { MOK_CLI_MAX_OWN = 32 };

struct mok_cli_started {
    char command[16];
    uint64_t own[MOK_CLI_MAX_OWN]; /* hash of each own option's value, by index in the command's table; 0 for one that may differ */
    uint64_t names;                /* hash of the positional arguments */
};

/* Of the command that mok_cli_dispatch runs. */
const struct mok_cli_started *mok_cli_started(void);
/* "weights": the idx-th own option of that command; "option" where it has none. */
const char *mok_cli_own_name(int idx);

/* Every command of the tool, in the order of the help; ends with a NULL. */
extern const struct mok_cli_command *const mok_cli_commands[];

/* Parses argv[0..argc) (what follows the command's name), runs the command. Returns the exit code. */
int mok_cli_dispatch(const struct mok_cli_command *command, int argc, char **argv);

/* The tool chooses GPUs itself. */
#define MOK_CLI_WHY_NO_DEVICE "rank r works on GPU r modulo their number; CUDA_VISIBLE_DEVICES says which there are"

/* Refuses the first of these group options ("ring look-ahead", NULL = all of them) that stands on the command line: "--ring <why>"; warns of
 * those that come from the environment. For commands to which an option is nothing because of the others. Errors: ARGUMENT. */
mok_status mok_cli_refuse_group(const char *names, const char *why);
/* 1 when the group option stands on the command line. */
int mok_cli_is_given(const char *name);
/* Where the group option's value is from, for sentences: "--peer", or "MOK_PEER" when the variable has set it. Valid until the next call. */
const char *mok_cli_setter(const char *name);
/* 1 when a launcher such as mpirun has started several processes. */
int mok_cli_is_launched(void);

/* For a command that finds out later that its arguments do not fit: sentence and usage line to stderr; returns MOK_CLI_EXIT_USAGE. */
int mok_cli_usage(const struct mok_cli_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* For a failure: "mok run: <sentence> (MOK_ERR_IO)" to stderr; returns the exit code. */
int mok_cli_report(const struct mok_cli_command *command, mok_status status);
/* The end of a command whose status tells all: MOK_ERR_ARGUMENT is a mistake of who started it (usage), another failure is reported. Of several
 * processes one speaks. Returns the exit code. */
int mok_cli_end(const struct mok_cli_command *command, mok_status status, int speaks);

#endif
