/* UTF-8 after Unicode 15.0, table 3-7 "Well-Formed UTF-8 Byte Sequences": see utf8.h. */
#include "base/utf8.h"

/* Length of the sequence that `lead` starts and the range of its second byte; 0: no lead byte. */
static int lead_info(uint8_t lead, uint8_t *second_low, uint8_t *second_high)
{
    *second_low = 0x80;
    *second_high = 0xbf;
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    if (lead < 0xe0)
        return 2;
    if (lead < 0xf0) {
        if (lead == 0xe0)
            *second_low = 0xa0;
        if (lead == 0xed)
            *second_high = 0x9f;
        return 3;
    }
    if (lead == 0xf0)
        *second_low = 0x90;
    if (lead == 0xf4)
        *second_high = 0x8f;
    return 4;
}

int utf8_decode(const char *text, size_t length, uint32_t *code_point)
{
    if (!length)
        return 0;
    const uint8_t *bytes = (const uint8_t *)text;
    uint8_t low, high;
    int size = lead_info(bytes[0], &low, &high);
    if (size == 0)
        return -1;
    if (size == 1) {
        *code_point = bytes[0];
        return 1;
    }
    uint32_t value = bytes[0] & (0xffu >> (size + 1));
    for (int i = 1; i < size; i++) {
        if ((size_t)i >= length)
            return 0;
        if (bytes[i] < low || bytes[i] > high)
            return -i;
        low = 0x80;
        high = 0xbf;
        value = value << 6 | (bytes[i] & 0x3fu);
    }
    *code_point = value;
    return size;
}

bool utf8_valid(const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        uint32_t code_point;
        int size = utf8_decode(text + i, length - i, &code_point);
        if (size <= 0)
            return false;
        i += (size_t)size;
    }
    return true;
}

int utf8_encode(uint32_t code_point, char out[static 4])
{
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xc0 | code_point >> 6);
        out[1] = (char)(0x80 | (code_point & 0x3f));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (char)(0xe0 | code_point >> 12);
        out[1] = (char)(0x80 | (code_point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code_point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code_point >> 18);
    out[1] = (char)(0x80 | (code_point >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code_point >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code_point & 0x3f));
    return 4;
}
