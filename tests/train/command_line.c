/* command_line.c: see command_line.h. */
#include "command_line.h"

#include <stdio.h>
#include <string.h>

#include "expect.h"

void words_split(Words *words, const char *line, int stage)
{
    memset(words, 0, sizeof *words);
    snprintf(words->text, sizeof words->text, "train %s", line);
    for (char *word = strtok(words->text, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(words->count < MAX_WORDS);
        words->list[words->count++] = word;
    }
    words->stage = stage;
}

Options parse(const char *line, int stage)
{
    static Words words;
    Options options;
    words_split(&words, line, stage);
    assert_true(options_parse(&options, words.count, words.list, stage));
    return options;
}
