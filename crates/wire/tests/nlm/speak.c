/* Says and understands messages with the code that rpcgen made of the definitions beside it.
 *
 * One request a line, one answer a line:
 *   encode TYPE name=value ...   the message in hexadecimal
 *   decode TYPE HEX              name=value ... in the order of the definition
 * Numbers are decimal, bytes and strings hexadecimal. What cannot be done is answered with "error:".
 *
 * COMPLETE is set if the definitions have version 4 and the notices between hosts. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nlm.h"
#include "nsm.h"

enum { FIELDS_MAX = 32, MESSAGE_BYTES_MAX = 16384 };

/* The values of one message: taken from the fields that were given, or written as text. */
struct text {
	int giving;
	char *fields[FIELDS_MAX];
	int count;
	int used;
	const char *missing;
	const char *separator;
};

static const char *given(struct text *text, const char *name)
{
	size_t length = strlen(name);
	for (int i = 0; i < text->count; i++) {
		const char *field = text->fields[i];
		if (strncmp(field, name, length) == 0 && field[length] == '=') {
			text->used++;
			return field + length + 1;
		}
	}
	text->missing = name;
	return "";
}

static void begin(struct text *text, const char *name)
{
	printf("%s%s=", text->separator, name);
	text->separator = " ";
}

static char *from_hex(const char *hex, unsigned int *length)
{
	*length = strlen(hex) / 2;
	char *bytes = calloc(*length + 1, 1);
	for (unsigned int i = 0; i < *length; i++) {
		unsigned int byte = 0;
		sscanf(hex + 2 * i, "%2x", &byte);
		bytes[i] = (char)byte;
	}
	return bytes;
}

static void to_hex(const char *bytes, unsigned int length)
{
	for (unsigned int i = 0; i < length; i++)
		printf("%02x", (unsigned char)bytes[i]);
}

static void netobject(struct text *text, const char *name, netobj *value)
{
	if (text->giving) {
		value->n_bytes = from_hex(given(text, name), &value->n_len);
	} else {
		begin(text, name);
		to_hex(value->n_bytes, value->n_len);
	}
}

static void string(struct text *text, const char *name, char **value)
{
	unsigned int length;
	if (text->giving) {
		*value = from_hex(given(text, name), &length);
	} else {
		begin(text, name);
		to_hex(*value, strlen(*value));
	}
}

static void sixteen(struct text *text, const char *name, char value[16])
{
	unsigned int length;
	if (text->giving) {
		char *bytes = from_hex(given(text, name), &length);
		memcpy(value, bytes, length < 16 ? length : 16);
		free(bytes);
	} else {
		begin(text, name);
		to_hex(value, 16);
	}
}

/* Macros, because the width of a number depends on the definition. */
#define SIGNED(text, name, value) do { \
	if ((text)->giving) { \
		(value) = strtoll(given(text, name), NULL, 10); \
	} else { \
		begin(text, name); \
		printf("%lld", (long long)(value)); \
	} \
} while (0)

#define UNSIGNED(text, name, value) do { \
	if ((text)->giving) { \
		(value) = strtoull(given(text, name), NULL, 10); \
	} else { \
		begin(text, name); \
		printf("%llu", (unsigned long long)(value)); \
	} \
} while (0)

/* The messages that differ between versions only in the names of their types. */
#define LOCKING(nlm) \
static void nlm##_lock_fields(struct text *text, struct nlm##_lock *lock) \
{ \
	string(text, "caller_name", &lock->caller_name); \
	netobject(text, "fh", &lock->fh); \
	netobject(text, "oh", &lock->oh); \
	SIGNED(text, "svid", lock->svid); \
	UNSIGNED(text, "l_offset", lock->l_offset); \
	UNSIGNED(text, "l_len", lock->l_len); \
} \
static void nlm##_testargs_fields(struct text *text, void *message) \
{ \
	struct nlm##_testargs *args = message; \
	netobject(text, "cookie", &args->cookie); \
	SIGNED(text, "exclusive", args->exclusive); \
	nlm##_lock_fields(text, &args->alock); \
} \
static void nlm##_lockargs_fields(struct text *text, void *message) \
{ \
	struct nlm##_lockargs *args = message; \
	netobject(text, "cookie", &args->cookie); \
	SIGNED(text, "block", args->block); \
	SIGNED(text, "exclusive", args->exclusive); \
	nlm##_lock_fields(text, &args->alock); \
	SIGNED(text, "reclaim", args->reclaim); \
	SIGNED(text, "state", args->state); \
} \
static void nlm##_cancargs_fields(struct text *text, void *message) \
{ \
	struct nlm##_cancargs *args = message; \
	netobject(text, "cookie", &args->cookie); \
	SIGNED(text, "block", args->block); \
	SIGNED(text, "exclusive", args->exclusive); \
	nlm##_lock_fields(text, &args->alock); \
} \
static void nlm##_unlockargs_fields(struct text *text, void *message) \
{ \
	struct nlm##_unlockargs *args = message; \
	netobject(text, "cookie", &args->cookie); \
	nlm##_lock_fields(text, &args->alock); \
} \
static void nlm##_testres_fields(struct text *text, void *message) \
{ \
	struct nlm##_testres *reply = message; \
	netobject(text, "cookie", &reply->cookie); \
	SIGNED(text, "stat", reply->stat.stat); \
	if (reply->stat.stat == 1) { \
		struct nlm##_holder *holder = &reply->stat.nlm##_testrply_u.holder; \
		SIGNED(text, "exclusive", holder->exclusive); \
		SIGNED(text, "svid", holder->svid); \
		netobject(text, "oh", &holder->oh); \
		UNSIGNED(text, "l_offset", holder->l_offset); \
		UNSIGNED(text, "l_len", holder->l_len); \
	} \
} \
static void nlm##_res_fields(struct text *text, void *message) \
{ \
	struct nlm##_res *reply = message; \
	netobject(text, "cookie", &reply->cookie); \
	SIGNED(text, "stat", reply->stat.stat); \
} \
static void nlm##_shareres_fields(struct text *text, void *message) \
{ \
	struct nlm##_shareres *reply = message; \
	netobject(text, "cookie", &reply->cookie); \
	SIGNED(text, "stat", reply->stat); \
	SIGNED(text, "sequence", reply->sequence); \
}

LOCKING(nlm)
#ifdef COMPLETE
LOCKING(nlm4)
#endif

static void nlm_shareargs_fields(struct text *text, void *message)
{
	struct nlm_shareargs *args = message;
	netobject(text, "cookie", &args->cookie);
	string(text, "caller_name", &args->share.caller_name);
	netobject(text, "fh", &args->share.fh);
	netobject(text, "oh", &args->share.oh);
	SIGNED(text, "mode", args->share.mode);
	SIGNED(text, "access", args->share.access);
	SIGNED(text, "reclaim", args->reclaim);
}

static void nlm_notify_fields(struct text *text, void *message)
{
	struct nlm_notify *args = message;
	/* A long in Debian's definition, and then the library does not extend the sign. */
	int state = args->state;
	string(text, "name", &args->name);
	SIGNED(text, "state", state);
	args->state = state;
}

static void sm_name_fields(struct text *text, void *message)
{
	struct sm_name *args = message;
	string(text, "mon_name", &args->mon_name);
}

static void my_id_fields(struct text *text, void *message)
{
	struct my_id *args = message;
	string(text, "my_name", &args->my_name);
	SIGNED(text, "my_prog", args->my_prog);
	SIGNED(text, "my_vers", args->my_vers);
	SIGNED(text, "my_proc", args->my_proc);
}

static void mon_id_fields(struct text *text, void *message)
{
	struct mon_id *args = message;
	string(text, "mon_name", &args->mon_name);
	my_id_fields(text, &args->my_id);
}

static void mon_fields(struct text *text, void *message)
{
	struct mon *args = message;
	mon_id_fields(text, &args->mon_id);
	sixteen(text, "priv", args->priv);
}

static void sm_stat_fields(struct text *text, void *message)
{
	struct sm_stat *reply = message;
	SIGNED(text, "state", reply->state);
}

static void sm_stat_res_fields(struct text *text, void *message)
{
	struct sm_stat_res *reply = message;
	SIGNED(text, "res_stat", reply->res_stat);
	SIGNED(text, "state", reply->state);
}

static void status_fields(struct text *text, void *message)
{
	struct status *args = message;
	string(text, "mon_name", &args->mon_name);
	SIGNED(text, "state", args->state);
	sixteen(text, "priv", args->priv);
}

#ifdef COMPLETE
static void stat_chge_fields(struct text *text, void *message)
{
	struct stat_chge *args = message;
	string(text, "mon_name", &args->mon_name);
	SIGNED(text, "state", args->state);
}
#endif

static void void_fields(struct text *text, void *message)
{
	(void)text;
	(void)message;
}

struct type {
	const char *name;
	xdrproc_t xdr;
	void (*fields)(struct text *text, void *message);
};

#define TYPE(name) { #name, (xdrproc_t)xdr_##name, name##_fields }

static const struct type types[] = {
	TYPE(void),
	TYPE(nlm_testargs), TYPE(nlm_lockargs), TYPE(nlm_cancargs), TYPE(nlm_unlockargs),
	TYPE(nlm_testres), TYPE(nlm_res), TYPE(nlm_shareargs), TYPE(nlm_shareres), TYPE(nlm_notify),
	TYPE(sm_name), TYPE(my_id), TYPE(mon_id), TYPE(mon), TYPE(sm_stat), TYPE(sm_stat_res),
	TYPE(status),
#ifdef COMPLETE
	TYPE(nlm4_testargs), TYPE(nlm4_lockargs), TYPE(nlm4_cancargs), TYPE(nlm4_unlockargs),
	TYPE(nlm4_testres), TYPE(nlm4_res), TYPE(nlm4_shareres),
	TYPE(stat_chge),
#endif
};

static const struct type *find(const char *name)
{
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (strcmp(types[i].name, name) == 0)
			return &types[i];
	return NULL;
}

/* Larger than any message structure, and aligned for all. */
union room {
	long long aligned;
	char bytes[1024];
};

static void encode(const struct type *type, struct text *text)
{
	static char buffer[MESSAGE_BYTES_MAX];
	union room room = { 0 };
	XDR xdr;

	text->giving = 1;
	type->fields(text, &room);
	if (text->missing || text->used != text->count) {
		const char *what = text->missing ? text->missing : "another than was given";
		printf("error: %s has the field %s", type->name, what);
		return;
	}
	xdrmem_create(&xdr, buffer, sizeof buffer, XDR_ENCODE);
	if (type->xdr(&xdr, &room))
		to_hex(buffer, xdr_getpos(&xdr));
	else
		printf("error: not encoded");
	xdr_free(type->xdr, (char *)&room);
}

static void decode(const struct type *type, const char *hex)
{
	unsigned int length;
	char *bytes = from_hex(hex, &length);
	union room room = { 0 };
	struct text text = { .separator = "" };
	XDR xdr;

	xdrmem_create(&xdr, bytes, length, XDR_DECODE);
	if (!type->xdr(&xdr, &room))
		printf("error: not decoded");
	else if (xdr_getpos(&xdr) != length)
		printf("error: %u of %u bytes were read", xdr_getpos(&xdr), length);
	else
		type->fields(&text, &room);
	xdr_free(type->xdr, (char *)&room);
	free(bytes);
}

int main(void)
{
	char *line = NULL;
	size_t room = 0;
	while (getline(&line, &room, stdin) > 0) {
		char *verb = strtok(line, " \n");
		char *name = strtok(NULL, " \n");
		const struct type *type = name ? find(name) : NULL;
		struct text text = { 0 };
		for (char *field; text.count < FIELDS_MAX && (field = strtok(NULL, " \n"));)
			text.fields[text.count++] = field;
		if (!type)
			printf("error: no type %s", name ? name : "at all");
		else if (strcmp(verb, "encode") == 0)
			encode(type, &text);
		else
			decode(type, text.count > 0 ? text.fields[0] : "");
		putchar('\n');
	}
	free(line);
	return ferror(stdin) || fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
