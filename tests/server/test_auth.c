/* API keys: which files are taken, which keys open, and that their salts are apart and last. */
#include "server/auth.h"

#include "base/limits.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "/tmp/quire-test-auth-XXXXXX";
static struct error error;

static enum status load(const char *text, struct auth **out)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    error_clear(&error);
    return auth_load(path, out, &error);
}

START_TEST(test_keys_open)
{
    struct auth *auth;
    struct auth_key one, two, none = {7, 7, true};
    ck_assert_int_eq(load("# ours\n\n  sk-one \r\nsk-two\n", &auth), STATUS_OK);
    ck_assert_uint_eq(auth_key_count(auth), 2);
    ck_assert(auth_allows(auth, "Bearer sk-one", &one));
    ck_assert(auth_allows(auth, "bearer  sk-two ", &two));
    ck_assert(one.salt && two.salt && one.salt != two.salt);
    ck_assert(one.number == 1 && two.number == 2);
    ck_assert(!auth_allows(auth, "Bearer sk-on", &none));
    ck_assert(none.salt == 0 && none.number == 0 && !none.is_operator);
    ck_assert(!one.is_operator && !two.is_operator);
    ck_assert(!auth_allows(auth, "Bearer sk-one2", &none));
    ck_assert(!auth_allows(auth, "Bearer ", &none));
    ck_assert(!auth_allows(auth, "Bearer", &none));
    ck_assert(!auth_allows(auth, "sk-one", &none));
    ck_assert(!auth_allows(auth, "Basic sk-one", &none));
    ck_assert(!auth_allows(auth, NULL, &none));
    struct auth_key again;
    struct auth *later;
    ck_assert_int_eq(load("other\nsk-one\n", &later), STATUS_OK);
    ck_assert(auth_allows(later, "Bearer sk-one", &again));
    ck_assert_uint_eq(again.salt, one.salt); /* over restarts, wherever it stands */
    ck_assert_uint_eq(again.number, 2);
    auth_destroy(later);
    auth_destroy(auth);
}
END_TEST

START_TEST(test_long_keys)
{
    char text[2 * LIMIT_API_KEY_BYTES];
    char header[3 * LIMIT_API_KEY_BYTES];
    struct auth *auth;
    struct auth_key key;
    memset(text, 'k', sizeof text);
    text[LIMIT_API_KEY_BYTES - 1] = '\0';
    ck_assert_int_eq(load(text, &auth), STATUS_OK);
    snprintf(header, sizeof header, "Bearer %s", text);
    ck_assert(auth_allows(auth, header, &key));
    snprintf(header, sizeof header, "Bearer %sk", text);
    ck_assert(!auth_allows(auth, header, &key));
    snprintf(header, sizeof header, "Bearer %skkkkkkk", text);
    ck_assert(!auth_allows(auth, header, &key));
    auth_destroy(auth);
    text[LIMIT_API_KEY_BYTES - 1] = 'k';
    text[LIMIT_API_KEY_BYTES] = '\0';
    ck_assert_int_eq(load(text, &auth), STATUS_INVALID);
}
END_TEST

START_TEST(test_bad_files)
{
    struct auth *auth;
    ck_assert_int_eq(load("", &auth), STATUS_INVALID);
    ck_assert_int_eq(load("# nothing\n\n", &auth), STATUS_INVALID);
    ck_assert_int_eq(load("a key\n", &auth), STATUS_INVALID);
    ck_assert_int_eq(load("good\nk\xc3\xa9y\n", &auth), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.message, "line 2"));
    ck_assert_ptr_null(strstr(error.message, "good"));
    ck_assert_int_eq(load("same\nother\nsame\n", &auth), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.message, "line 3"));
    ck_assert_ptr_null(strstr(error.message, "same"));
    ck_assert_int_eq(auth_load("/nonexistent/keys", &auth, &error), STATUS_IO);
    ck_assert_ptr_null(auth);
}
END_TEST

START_TEST(test_many_keys)
{
    char text[16 * (LIMIT_API_KEYS + 1)] = "";
    size_t length = 0;
    struct auth *auth;
    struct auth_key key;
    for (unsigned i = 0; i < LIMIT_API_KEYS; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "key-%u\n", i);
    ck_assert_int_eq(load(text, &auth), STATUS_OK);
    ck_assert(auth_allows(auth, "Bearer key-0", &key));
    ck_assert(auth_allows(auth, "Bearer key-255", &key));
    ck_assert(!auth_allows(auth, "Bearer key-256", &key));
    auth_destroy(auth);
    snprintf(text + length, sizeof text - length, "one-more\n");
    ck_assert_int_eq(load(text, &auth), STATUS_INVALID);
}
END_TEST

static enum status reload(struct auth *auth, const char *text, struct auth_change *change)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    return auth_reload(auth, path, change, &error);
}

/* Who may do what concerns all keys. */
START_TEST(test_operators)
{
    struct auth *auth;
    struct auth_key key;
    ck_assert_int_eq(load("a\nb \t operator \r\noperator\n", &auth), STATUS_OK);
    ck_assert(auth_allows(auth, "Bearer a", &key) && !key.is_operator);
    ck_assert(auth_allows(auth, "Bearer b", &key) && key.is_operator && key.number == 2);
    ck_assert(auth_allows(auth, "Bearer operator", &key) && !key.is_operator);
    ck_assert(!auth_allows(auth, "Bearer b operator", &key) && !key.is_operator);
    auth_destroy(auth);
    ck_assert_int_eq(load("alone\n", &auth), STATUS_OK);
    ck_assert(auth_allows(auth, "Bearer alone", &key) && key.is_operator);
    auth_destroy(auth);
    struct auth_change change; /* the mark comes and goes with the file */
    ck_assert_int_eq(load("a\nb operator\n", &auth), STATUS_OK);
    ck_assert_int_eq(reload(auth, "a operator\nb\n", &change), STATUS_OK);
    ck_assert(change.added == 0 && change.removed == 0);
    ck_assert(auth_allows(auth, "Bearer a", &key) && key.is_operator);
    ck_assert(auth_allows(auth, "Bearer b", &key) && !key.is_operator);
    auth_destroy(auth);
    ck_assert_int_eq(load("a operators\n", &auth), STATUS_INVALID);
    ck_assert_int_eq(load("a operator b\n", &auth), STATUS_INVALID);
    ck_assert_int_eq(load("a\na operator\n", &auth), STATUS_INVALID);
}
END_TEST

START_TEST(test_reload)
{
    struct auth *auth;
    struct auth_key one, two, key;
    struct auth_change change;
    ck_assert_int_eq(load("one\ntwo\nthree\n", &auth), STATUS_OK);
    ck_assert(auth_allows(auth, "Bearer one", &one) && auth_allows(auth, "Bearer two", &two));
    ck_assert_int_eq(reload(auth, "four\ntwo\n", &change), STATUS_OK);
    ck_assert(change.added == 1 && change.removed == 2);
    ck_assert_uint_eq(auth_key_count(auth), 2);
    ck_assert(!auth_allows(auth, "Bearer one", &key) && !key.number && !key.salt);
    ck_assert(!auth_allows(auth, "Bearer three", &key));
    ck_assert(!auth_allows(auth, "Bearer ", &key)); /* the place of a removed key is no key */
    ck_assert(auth_allows(auth, "Bearer two", &key));
    ck_assert(key.number == two.number && key.salt == two.salt);
    ck_assert(auth_allows(auth, "Bearer four", &key));
    ck_assert_uint_eq(key.number, 4); /* nobody else's, so that counters do not mix */
    ck_assert_uint_eq(auth_last_number(auth), 4);
    /* Whatever is wrong, the keys stay. */
    ck_assert_int_eq(reload(auth, "", &change), STATUS_INVALID);
    ck_assert_int_eq(reload(auth, "a key\n", &change), STATUS_INVALID);
    ck_assert_int_eq(reload(auth, "x\nx\n", &change), STATUS_INVALID);
    ck_assert_int_eq(auth_reload(auth, "/nonexistent/keys", &change, &error), STATUS_IO);
    ck_assert_int_eq(auth_reload(auth, "/tmp", &change, &error), STATUS_INVALID);
    ck_assert_int_eq(auth_reload(auth, "/dev/zero", &change, &error), STATUS_INVALID);
    ck_assert(auth_allows(auth, "Bearer two", &key) && auth_allows(auth, "Bearer four", &key));
    /* Removed and back. */
    ck_assert_int_eq(reload(auth, "one\n", &change), STATUS_OK);
    ck_assert(change.added == 1 && change.removed == 2);
    ck_assert(auth_allows(auth, "Bearer one", &key) && key.salt == one.salt);
    auth_destroy(auth);
}
END_TEST

/* Numbers run out after LIMIT_API_KEYS different keys: then those of removed keys are used again.
 */
START_TEST(test_reload_for_ever)
{
    struct auth *auth;
    struct auth_change change;
    ck_assert_int_eq(load("key-0\n", &auth), STATUS_OK);
    for (unsigned i = 1; i < 2 * LIMIT_API_KEYS; i++) {
        char text[64], header[64];
        struct auth_key key;
        snprintf(text, sizeof text, "key-%u\nstays\n", i);
        ck_assert_int_eq(reload(auth, text, &change), STATUS_OK);
        ck_assert_uint_eq(auth_key_count(auth), 2);
        snprintf(header, sizeof header, "Bearer key-%u", i);
        ck_assert(auth_allows(auth, header, &key));
        ck_assert(key.number >= 1 && key.number <= LIMIT_API_KEYS);
        snprintf(header, sizeof header, "Bearer key-%u", i - 1);
        ck_assert(!auth_allows(auth, header, &key));
        ck_assert(auth_allows(auth, "Bearer stays", &key) && key.number == 3);
    }
    auth_destroy(auth);
}
END_TEST

int main(void)
{
    int fd = mkstemp(path);
    if (fd < 0 || fchmod(fd, 0600))
        return 1;
    close(fd);
    Suite *suite = suite_create("auth");
    TCase *tests = tcase_create("auth");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_keys_open);
    tcase_add_test(tests, test_operators);
    tcase_add_test(tests, test_long_keys);
    tcase_add_test(tests, test_bad_files);
    tcase_add_test(tests, test_many_keys);
    tcase_add_test(tests, test_reload);
    tcase_add_test(tests, test_reload_for_ever);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    unlink(path);
    return failed != 0;
}
