/*
 * Names of waits, for the sentences of src/api. The public ones are mok_site_name and mok_event_name.
 */
#ifndef MOK_API_NAMES_H
#define MOK_API_NAMES_H

#include <stdint.h>

/* What the index of a fault at this site counts: "source rank", "row tile", ... "index" when the site has none. */
const char *mok_api_site_index_name(int32_t site);

#endif
