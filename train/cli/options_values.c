/* options_values.c: converts a flag's text to a number or a choice. If the whole text is not a value in the flag's
 * range, the program ends with one line that says what would be right. */
#include "train/cli/options_flags.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* strtol() and strtod() would skip spaces, and strtod() reads "nan" and "0x10" as well: a decimal number begins with a
 * digit, sign or point, and has no x. */
static bool looks_like_number(const char *text)
{
    const char *start = text + (*text == '-' || *text == '+');
    const char *digit = start + (*start == '.');
    return isdigit((unsigned char)*digit) && start[1] != 'x' && start[1] != 'X';
}

/* Reads a whole number that ends at `terminator`; returns false if there is none within the range. */
static bool read_whole(const Flag *flag, const char *text, char terminator, long *number, const char **rest)
{
    char *end = NULL;
    errno = 0;
    *number = strtol(text, &end, 10);
    *rest = end;
    return looks_like_number(text) && errno == 0 && *end == terminator && (double)*number >= flag->low &&
           (double)*number <= flag->high;
}

static bool read_real(const Flag *flag, const char *text, char terminator, double *number, const char **rest)
{
    char *end = NULL;
    *number = strtod(text, &end);
    *rest = end;
    return looks_like_number(text) && isfinite(*number) && *end == terminator && *number >= flag->low &&
           *number <= flag->high;
}

long whole_number(const FlagValues *values, FlagId id)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    long number = 0;
    if (text != NULL && !read_whole(flag, text, '\0', &number, &rest))
        die("--%s: '%s' is not a whole number from %.0f to %.0f", flag->name, text, flag->low, flag->high);
    return number;
}

double real_number(const FlagValues *values, FlagId id)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    double number = 0;
    if (text != NULL && !read_real(flag, text, '\0', &number, &rest))
        die("--%s: '%s' is not a number from %g to %g", flag->name, text, flag->low, flag->high);
    return number;
}

void whole_number_pair(const FlagValues *values, FlagId id, long *first, long *second)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    if (!read_whole(flag, text, ',', first, &rest) || !read_whole(flag, rest + 1, '\0', second, &rest))
        die("--%s: '%s' is not %s: two whole numbers from %.0f to %.0f with a comma between them", flag->name, text,
            flag->argument, flag->low, flag->high);
}

int whole_number_list(const FlagValues *values, FlagId id, int64_t *numbers, int room)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    int count = 0;
    while (text != NULL) {
        long number = 0;
        bool more = read_whole(flag, text, ',', &number, &rest);
        if (count == room || (!more && !read_whole(flag, text, '\0', &number, &rest)))
            die("--%s: '%s' is not %s: up to %d whole numbers from %.0f to %.0f with commas between them", flag->name,
                values->text[id], flag->argument, room, flag->low, flag->high);
        numbers[count++] = number;
        text = more ? rest + 1 : NULL;
    }
    return count;
}

void real_number_pair(const FlagValues *values, FlagId id, double *first, double *second)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    if (!read_real(flag, text, ',', first, &rest) || !read_real(flag, rest + 1, '\0', second, &rest))
        die("--%s: '%s' is not %s: two numbers from %g to %g with a comma between them", flag->name, text,
            flag->argument, flag->low, flag->high);
}

const Choice *choice(const FlagValues *values, FlagId id)
{
    char list[128] = "";
    for (const Choice *one = flags[id].choices; one->name != NULL; one++) {
        if (strcmp(one->name, values->text[id]) == 0)
            return one;
        strncat(list, list[0] != '\0' ? ", " : "", sizeof list - strlen(list) - 1);
        strncat(list, one->name, sizeof list - strlen(list) - 1);
    }
    die("--%s: '%s' is unknown; the choices are: %s", flags[id].name, values->text[id], list);
}
