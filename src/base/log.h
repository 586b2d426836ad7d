/*
 * Log on stderr. Warnings alone, unless MOK_LOG says otherwise: 0 = nothing; 1 = every failure, where it is decided; 2 = also what a group chose
 * for itself.
 */
#ifndef MOK_BASE_LOG_H
#define MOK_BASE_LOG_H

enum mok_log_level { MOK_LOG_NOTHING, MOK_LOG_WARNINGS, MOK_LOG_FAILURES, MOK_LOG_CHOICES };

/* The level that a value of MOK_LOG asks for; NULL and "" are not set. 0 when the value has no meaning. */
int mok_base_log_parse(const char *text, enum mok_log_level *level_out);

/* 1 when messages of this level are wanted. MOK_LOG is read at each call: failures and creations are rare. A value without a meaning, which
 * mok_group_config_init refuses, is as good as none here. */
int mok_base_log_wants(enum mok_log_level level);

/* One line, "mok: " in front and a line end behind it. Does nothing when the level is not wanted. */
void mok_base_log(enum mok_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Between the two this thread logs nothing: for a question whose answer may be no, which is not a failure. They may be nested. */
void mok_base_log_pause(void);
void mok_base_log_resume(void);

#endif
