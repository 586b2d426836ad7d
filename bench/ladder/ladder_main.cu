/*
 * ladder verify                       checks all GEMMs; exit code 1 when one fails
 * ladder once SHAPES                  each GEMM and its dense twin once, for a profiler
 * ladder speed [SHAPES [LABEL]]       times them; SHAPES: names, joined by commas; appends JSON lines to $LADDER_JSON when set
 */
#include <string.h>

#include "ladder.h"

int main(int argc, char **argv)
{
    if (argc < 2 || (strcmp(argv[1], "verify") && strcmp(argv[1], "speed") && strcmp(argv[1], "once"))) {
        fprintf(stderr, "usage: ladder verify | ladder speed [SHAPES [LABEL]] | ladder once SHAPES\n");
        return 2;
    }
    LADDER_MOK(mok_cuda_gemm_prepare());
    if (!strcmp(argv[1], "verify")) {
        ladder_verify();
        return ladder_num_failed > 0 || ladder_num_checks == 0;
    }
    if (!strcmp(argv[1], "once")) {
        ladder_once(argc > 2 ? argv[2] : "");
        return 0;
    }
    const char *path = getenv("LADDER_JSON");
    FILE *json = path ? fopen(path, "a") : NULL;
    if (path && !json) {
        perror(path);
        return 2;
    }
    ladder_speed(argc > 2 && strcmp(argv[2], "all") ? argv[2] : NULL, argc > 3 ? argv[3] : "default", json);
    if (json) {
        fclose(json);
    }
    return 0;
}
