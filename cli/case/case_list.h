/*
 * What a backend has by design, and with it which rows of the case table and which ways of case/case_equal.c are its own. A case that needs a
 * path or a kind of ranks that the backend does not have is not on its list: it is neither run nor counted. That follows from the table in
 * case/case_list.c, never from what a call returns, so MOK_ERR_UNSUPPORTED from a case on the list is a failure like any other.
 *
 * tests/cases/test_case_list.c holds the table against the library: what the table leaves out must be refused, what it has must not.
 */
#ifndef MOK_CASE_LIST_H
#define MOK_CASE_LIST_H

#include "case/case_launch.h"

/* backend: not AUTO. */
int mok_case_has_path(int32_t backend, int32_t path);
int mok_case_has_ranks(int32_t backend, enum mok_case_ranks ranks);

/* 1: the case is on the list of this backend and kind of ranks. */
int mok_case_is_listed(const struct mok_ref_case *recipe, const struct mok_case_where *where);

#endif
