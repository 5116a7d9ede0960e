/* stage_prints.c: how a graded ddp.c prints: straight to the descriptors 1 and 2, with "ddp.c: " before each line. No
 * message of a test begins so. Its stdout and stderr are no FILEs of the C library's, whose fields would lead to other
 * descriptors. stage_calls.c says how these functions take the place of printf() and its family. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char no_streams[2][sizeof(FILE)]; /* only their addresses count */
FILE *stage_stdout = (FILE *)no_streams[0], *stage_stderr = (FILE *)no_streams[1];

static void print(const FILE *stream, const char *text, size_t length)
{
    static bool inside[2]; /* a line, by stream */
    const bool is_error = stream != stage_stdout;
    while (length > 0) {
        const char *end = memchr(text, '\n', length);
        const size_t part = end != NULL ? (size_t)(end - text) + 1 : length;
        const int fd = is_error ? STDERR_FILENO : STDOUT_FILENO;
        ssize_t written = inside[is_error] ? 0 : write(fd, "ddp.c: ", 7);
        written = written < 0 ? -1 : write(fd, text, part);
        if (written < 0)
            return;
        inside[is_error] = end == NULL;
        text += part;
        length -= part;
    }
}

int stage_vfprintf(FILE *stream, const char *format, va_list arguments)
{
    char *text;
    const int length = vasprintf(&text, format, arguments);
    if (length < 0)
        return length;
    print(stream, text, (size_t)length);
    free(text);
    return length;
}

int stage_vfprintf_chk(FILE *stream, int flag, const char *format, va_list arguments)
{
    (void)flag;
    return stage_vfprintf(stream, format, arguments);
}

int stage_vprintf(const char *format, va_list arguments)
{
    return stage_vfprintf(stage_stdout, format, arguments);
}

int stage_vprintf_chk(int flag, const char *format, va_list arguments)
{
    (void)flag;
    return stage_vfprintf(stage_stdout, format, arguments);
}

int stage_fprintf(FILE *stream, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = stage_vfprintf(stream, format, arguments);
    va_end(arguments);
    return length;
}

int stage_fprintf_chk(FILE *stream, int flag, const char *format, ...)
{
    va_list arguments;
    (void)flag;
    va_start(arguments, format);
    const int length = stage_vfprintf(stream, format, arguments);
    va_end(arguments);
    return length;
}

int stage_printf(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = stage_vfprintf(stage_stdout, format, arguments);
    va_end(arguments);
    return length;
}

int stage_printf_chk(int flag, const char *format, ...)
{
    va_list arguments;
    (void)flag;
    va_start(arguments, format);
    const int length = stage_vfprintf(stage_stdout, format, arguments);
    va_end(arguments);
    return length;
}

size_t stage_fwrite(const void *from, size_t size, size_t count, FILE *stream)
{
    print(stream, from, size * count);
    return count;
}

int stage_fputs(const char *text, FILE *stream)
{
    print(stream, text, strlen(text));
    return 1;
}

int stage_puts(const char *text)
{
    return stage_fprintf(stage_stdout, "%s\n", text);
}

int stage_fputc(int character, FILE *stream)
{
    const char c = (char)character;
    print(stream, &c, 1);
    return (unsigned char)c;
}

int stage_putc(int character, FILE *stream)
{
    return stage_fputc(character, stream);
}

int stage_putchar(int character)
{
    return stage_fputc(character, stage_stdout);
}

void stage_perror(const char *text)
{
    stage_fprintf(stage_stderr, "%s: %s\n", text != NULL ? text : "", strerror(errno));
}

/* Nothing is kept in a buffer. */
int stage_fflush(FILE *stream)
{
    (void)stream;
    return 0;
}

int stage_setvbuf(FILE *stream, char *buffer, int mode, size_t size)
{
    (void)stream, (void)buffer, (void)mode, (void)size;
    return 0;
}

void stage_setbuf(FILE *stream, char *buffer)
{
    (void)stream, (void)buffer;
}
