/* Version of the header. mok_version() gives that of the library that is loaded. */
#ifndef MOK_VERSION_H
#define MOK_VERSION_H

#define MOK_VERSION_MAJOR 0
#define MOK_VERSION_MINOR 1
#define MOK_VERSION_PATCH 0
#define MOK_VERSION (MOK_VERSION_MAJOR * 10000 + MOK_VERSION_MINOR * 100 + MOK_VERSION_PATCH)

#endif
