/* command_line.h: options as a command line gives them. */
#ifndef LOCKSTEP_TESTS_COMMAND_LINE_H
#define LOCKSTEP_TESTS_COMMAND_LINE_H

#include "train/cli/options.h"

enum { MAX_WORDS = 16 };

/* The words of a command line, like the arguments of main(). */
typedef struct Words {
    int count;
    char *list[MAX_WORDS + 1];
    char text[512];
    int stage;
} Words;

/* Cuts `line` at its spaces. */
void words_split(Words *words, const char *line, int stage);

/* The options of this line; the case fails if it asks for help. They point into words that stay until the next call. */
Options parse(const char *line, int stage);

#endif
