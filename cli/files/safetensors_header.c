/*
 * One walk over the header's text. In: bytes that anybody may have written. Out: a verdict, with the byte at which a rule was broken.
 */
#include "files/safetensors_header.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 4 };

struct walk {
    const char *label;
    const unsigned char *text;
    size_t size;
    size_t at;
};

static mok_status refuse(const struct walk *walk, const char *rule)
{
    return mok_cli_fail(MOK_ERR_IO, "%s: header byte %zu: %s", walk->label, walk->at, rule);
}

/* Bytes of the UTF-8 sequence at text[at], 0 when it is none (overlong forms, surrogates and values past U+10FFFF included). */
static size_t utf8_length(const unsigned char *text, size_t left)
{
    unsigned char first = text[0];
    size_t length = first < 0x80                     ? 1
                    : first >= 0xC2 && first <= 0xDF ? 2
                    : (first & 0xF0) == 0xE0         ? 3
                    : first >= 0xF0 && first <= 0xF4 ? 4
                                                     : 0;
    if (length == 0 || length > left) {
        return 0;
    }
    for (size_t idx = 1; idx < length; idx++) {
        if ((text[idx] & 0xC0) != 0x80) {
            return 0;
        }
    }
    int is_bad = (first == 0xE0 && text[1] < 0xA0) || (first == 0xED && text[1] > 0x9F) || (first == 0xF0 && text[1] < 0x90) ||
                 (first == 0xF4 && text[1] > 0x8F);
    return is_bad ? 0 : length;
}

/* From the opening quote to behind the closing one. */
static mok_status walk_string(struct walk *walk)
{
    walk->at++;
    while (walk->at < walk->size && walk->text[walk->at] != '"') {
        const unsigned char *here = walk->text + walk->at;
        size_t left = walk->size - walk->at;
        size_t length = utf8_length(here, left);
        if (length == 0) {
            return refuse(walk, "not UTF-8");
        }
        if (here[0] < 0x20) {
            return refuse(walk, "control character inside a string");
        }
        if (left >= 6 && memcmp(here, "\\u0000", 6) == 0) {
            return refuse(walk, "escaped NUL inside a string");
        }
        walk->at += here[0] == '\\' && left >= 2 && utf8_length(here + 1, left - 1) > 0 ? 1 + utf8_length(here + 1, left - 1) : length;
    }
    if (walk->at >= walk->size) {
        return refuse(walk, "the header ends inside a string");
    }
    walk->at++;
    return MOK_OK;
}

/* Numbers in a header are sizes: digits alone. A JSON parser would also take -1, 1e3 and 1.5, and round what a double cannot hold. */
static mok_status walk_number(struct walk *walk)
{
    size_t first = walk->at;
    while (walk->at < walk->size && walk->text[walk->at] >= '0' && walk->text[walk->at] <= '9') {
        walk->at++;
    }
    size_t digits = walk->at - first;
    int is_followed = walk->at < walk->size && strchr("+-.eE", walk->text[walk->at]) != NULL;
    if (digits == 0 || is_followed || (digits > 1 && walk->text[first] == '0')) {
        size_t end = first;
        while (end < walk->size && walk->text[end] != '\0' && strchr("0123456789+-.eE", walk->text[end]) != NULL) {
            end++;
        }
        char token[32];
        snprintf(token, sizeof token, "%.*s", (int)(end - first > 24 ? 24 : end - first), (const char *)walk->text + first);
        return mok_cli_fail(MOK_ERR_IO, "%s: header byte %zu: number %s must be written with digits alone", walk->label, first, token);
    }
    return MOK_OK;
}

mok_status mok_safetensors_check_header(const char *label, const char *text, size_t size)
{
    struct walk walk = {.label = label, .text = (const unsigned char *)text, .size = size, .at = 0};
    if (size == 0 || text[0] != '{') {
        return refuse(&walk, "the header must start with '{' (is this a safetensors file?)");
    }
    int depth = 0;
    while (walk.at < size) {
        unsigned char c = walk.text[walk.at];
        if (c == '"') {
            MOK_TRY(walk_string(&walk));
        } else if ((c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.') {
            MOK_TRY(walk_number(&walk));
        } else {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            if (depth > MAX_DEPTH) {
                return refuse(&walk, "nested deeper than a header can be");
            }
            if (c == '\0' || c >= 0x80) {
                return refuse(&walk, "no character of JSON");
            }
            walk.at++;
        }
    }
    return MOK_OK;
}
