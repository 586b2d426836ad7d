/*
 * Size of one rank's place on the board: the head of every peer-visible region, used by the exchange at creation (src/peer) and
 * reserved by the layout of the region (src/plan).
 */
#ifndef MOK_BASE_BOARD_H
#define MOK_BASE_BOARD_H

enum {
    MOK_BOARD_BYTES = 512,
    MOK_BOARD_HEAD = 64, /* of these: what src/peer/notice.c needs beside the data */
    MOK_BOARD_DATA = MOK_BOARD_BYTES - MOK_BOARD_HEAD
};

#endif
