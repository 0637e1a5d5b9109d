/* Rows of Python values as binary COPY, checked and encoded in one pass.

1. A type accepts exact Python classes whose bytes are certain: `int` and `bool`, not another
   subclass; for timestamptz a `datetime` with a zone, for timestamp one without. Any other value,
   and any that asyncpg would change, such as the extremes that it converts to infinity, raises
   `ValueError`. The caller then lets asyncpg send the rows, which accepts or refuses the value.
2. Python code may run during the pass: the `utcoffset` of a user's time zone, or the iterator of a
   row. It may change the list of rows, and rows that are lists. So each row is fetched as a new
   reference, as a tuple, which holds its values; a row that has gone raises `IndexError`.
3. A piece is written into a `bytes` object that grows. Every write is preceded by `reserve`, with
   the number of bytes that it needs at most.

The format: wire.py. The numbers are in network byte order.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <datetime.h>
#include <stdint.h>
#include <string.h>

typedef enum {
    SMALLINT,
    INTEGER,
    BIGINT,
    REAL,
    DOUBLE,
    BOOLEAN,
    BYTEA,
    TEXT,
    JSONB,
    UUID,
    DATE,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    INTERVAL,
} Type;

static const struct {
    const char *name;
    Type type;
} TYPES[] = { /* as PostgreSQL spells them */
    {"smallint", SMALLINT},
    {"integer", INTEGER},
    {"bigint", BIGINT},
    {"real", REAL},
    {"double precision", DOUBLE},
    {"boolean", BOOLEAN},
    {"bytea", BYTEA},
    {"text", TEXT},
    {"character varying", TEXT},
    {"character", TEXT},
    {"bpchar", TEXT},
    {"name", TEXT},
    {"json", TEXT},
    {"jsonb", JSONB},
    {"uuid", UUID},
    {"date", DATE},
    {"time without time zone", TIME},
    {"timestamp without time zone", TIMESTAMP},
    {"timestamp with time zone", TIMESTAMPTZ},
    {"interval", INTERVAL},
};

static const char HEADER[] = "PGCOPY\n\377\r\n\0\0\0\0\0\0\0\0"; /* and the final NUL */
#define JSONB_VERSION 1

#define EPOCH_DAY 730120 /* 2000-01-01, as `date.toordinal` counts */
#define LAST_DAY 3652059
#define EARLIEST INT64_C(-63082281600000000) /* microseconds of the first and the last datetime */
#define LATEST INT64_C(252455615999999999)
#define SECOND INT64_C(1000000)

typedef struct {
    PyObject *uuid; /* the class */
    PyObject *name_int;
    PyObject *name_utcoffset;
    PyObject *half; /* 64, the number of bits in half of a UUID */
} State;

static int decline(void) {
    PyErr_SetString(PyExc_ValueError, "a value that asyncpg must encode or refuse");
    return -1;
}

/* -- output --------------------------------------------------------------------------------- */

typedef struct {
    PyObject *bytes; /* NULL after a failure to grow */
    char *base, *at, *end;
} Output;

static int resize(Output *out, Py_ssize_t size) {
    Py_ssize_t used = out->at - out->base;
    if (_PyBytes_Resize(&out->bytes, size) < 0) return -1;
    out->base = PyBytes_AS_STRING(out->bytes);
    out->at = out->base + used;
    out->end = out->base + size;
    return 0;
}

static inline int reserve(Output *out, Py_ssize_t count) {
    if (out->end - out->at >= count) return 0;
    Py_ssize_t used = out->at - out->base;
    if (count > PY_SSIZE_T_MAX / 2 - used) {
        PyErr_NoMemory();
        return -1;
    }
    return resize(out, (used + count) / 8 * 9 + 8);
}

static inline void put16(Output *out, uint16_t value) {
    unsigned char *to = (unsigned char *)out->at;
    to[0] = value >> 8;
    to[1] = value & 0xff;
    out->at += 2;
}

static inline void put32(Output *out, uint32_t value) {
    put16(out, value >> 16);
    put16(out, value & 0xffff);
}

static inline void put64(Output *out, uint64_t value) {
    put32(out, value >> 32);
    put32(out, value & 0xffffffff);
}

static inline void put(Output *out, const void *from, Py_ssize_t count) {
    memcpy(out->at, from, count);
    out->at += count;
}

/* -- values: each function writes the length of a field and its bytes, or raises --------------- */

static int put_integer(Output *out, Type type, PyObject *value) {
    if (!PyLong_CheckExact(value) && !PyBool_Check(value)) return decline();
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow || (number == -1 && PyErr_Occurred())) return decline();
    if (type == SMALLINT) {
        if (number != (int16_t)number) return decline();
        put32(out, 2);
        put16(out, (uint16_t)number);
    } else if (type == INTEGER) {
        if (number != (int32_t)number) return decline();
        put32(out, 4);
        put32(out, (uint32_t)number);
    } else {
        put32(out, 8);
        put64(out, (uint64_t)number);
    }
    return 0;
}

static int put_float(Output *out, Type type, PyObject *value) {
    if (!PyFloat_CheckExact(value) && !PyLong_CheckExact(value) && !PyBool_Check(value))
        return decline();
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) return -1;
    int size = type == REAL ? 4 : 8;
    put32(out, size);
    if (type == REAL ? PyFloat_Pack4(number, out->at, 0) : PyFloat_Pack8(number, out->at, 0))
        return -1;
    out->at += size;
    return 0;
}

static int put_bytes(Output *out, const char *from, Py_ssize_t count) {
    if (count > INT32_MAX) return decline();
    if (reserve(out, 4 + count)) return -1;
    put32(out, (uint32_t)count);
    put(out, from, count);
    return 0;
}

static int put_text(Output *out, Type type, PyObject *value) {
    if (!PyUnicode_CheckExact(value)) return decline();
    PyObject *encoded = NULL;
    const char *from;
    Py_ssize_t count, version = type == JSONB;
    if (PyUnicode_IS_COMPACT_ASCII(value)) {
        from = (const char *)PyUnicode_1BYTE_DATA(value);
        count = PyUnicode_GET_LENGTH(value);
    } else { /* not `PyUnicode_AsUTF8`, which would keep the bytes with the string */
        encoded = PyUnicode_AsUTF8String(value);
        if (encoded == NULL) return -1;
        from = PyBytes_AS_STRING(encoded);
        count = PyBytes_GET_SIZE(encoded);
    }
    int failed;
    if (count > INT32_MAX - version) {
        failed = decline();
    } else {
        failed = reserve(out, 4 + version + count);
    }
    if (!failed) {
        put32(out, (uint32_t)(version + count));
        if (version) *out->at++ = JSONB_VERSION;
        put(out, from, count);
    }
    Py_XDECREF(encoded);
    return failed;
}

static int hex_digit(unsigned char letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    letter |= 0x20; /* to lower case */
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

static int put_uuid_text(Output *out, PyObject *value) {
    Py_ssize_t count = PyUnicode_GET_LENGTH(value), digits = 0;
    if (count < 32 || count > 36 || !PyUnicode_IS_ASCII(value)) return decline();
    const Py_UCS1 *letters = PyUnicode_1BYTE_DATA(value);
    unsigned char found[16] = {0};
    for (Py_ssize_t place = 0; place < count; place++) {
        if (letters[place] == '-') continue;
        int digit = hex_digit(letters[place]);
        if (digit < 0 || digits == 32) return decline();
        found[digits / 2] |= digits % 2 ? digit : digit << 4;
        digits++;
    }
    if (digits != 32) return decline();
    put32(out, 16);
    put(out, found, 16);
    return 0;
}

static int put_uuid(Output *out, State *state, PyObject *value) {
    if (PyUnicode_CheckExact(value)) return put_uuid_text(out, value);
    if ((PyObject *)Py_TYPE(value) != state->uuid) return decline();
    PyObject *number = PyObject_GetAttr(value, state->name_int);
    if (number == NULL) return -1;
    if (!PyLong_CheckExact(number)) {
        Py_DECREF(number);
        return decline();
    }
    unsigned long long low = PyLong_AsUnsignedLongLongMask(number), high = 0;
    PyObject *rest = PyNumber_Rshift(number, state->half);
    Py_DECREF(number);
    if (rest != NULL) {
        high = PyLong_AsUnsignedLongLong(rest); /* refuses more than 128 bits */
        Py_DECREF(rest);
    }
    if (PyErr_Occurred()) return -1;
    put32(out, 16);
    put64(out, high);
    put64(out, low);
    return 0;
}

static int32_t day_of(PyObject *value) { /* `date.toordinal`, from 2000-01-01 */
    static const int before[] = {0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int year = PyDateTime_GET_YEAR(value), month = PyDateTime_GET_MONTH(value), past = year - 1;
    int is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    int days = past * 365 + past / 4 - past / 100 + past / 400;
    days += before[month] + (is_leap && month > 2) + PyDateTime_GET_DAY(value);
    return days - EPOCH_DAY;
}

static int put_date(Output *out, PyObject *value) {
    if (!PyDate_CheckExact(value)) return decline();
    int32_t day = day_of(value);
    if (day <= 1 - EPOCH_DAY || day >= LAST_DAY - EPOCH_DAY) return decline();
    put32(out, 4);
    put32(out, (uint32_t)day);
    return 0;
}

static int put_time(Output *out, PyObject *value) {
    if (!PyTime_CheckExact(value) || PyDateTime_TIME_GET_TZINFO(value) != Py_None)
        return decline();
    int minutes = PyDateTime_TIME_GET_HOUR(value) * 60 + PyDateTime_TIME_GET_MINUTE(value);
    int seconds = minutes * 60 + PyDateTime_TIME_GET_SECOND(value);
    put32(out, 8);
    put64(out, (uint64_t)(seconds * SECOND + PyDateTime_TIME_GET_MICROSECOND(value)));
    return 0;
}

/* Find the microseconds from UTC to the zone of a datetime, and whether it has a zone. */
static int find_offset(State *state, PyObject *value, int64_t *offset, int *has_zone) {
    PyObject *zone = PyDateTime_DATE_GET_TZINFO(value);
    *offset = 0;
    *has_zone = zone != Py_None;
    if (zone == Py_None || zone == PyDateTime_TimeZone_UTC) return 0;
    /* checks the result of the zone's method: None, or a timedelta of less than a day */
    PyObject *found = PyObject_CallMethodNoArgs(value, state->name_utcoffset);
    if (found == NULL) return -1;
    *has_zone = found != Py_None;
    if (found != Py_None) {
        int64_t seconds = (int64_t)PyDateTime_DELTA_GET_DAYS(found) * 86400;
        seconds += PyDateTime_DELTA_GET_SECONDS(found);
        *offset = seconds * SECOND + PyDateTime_DELTA_GET_MICROSECONDS(found);
    }
    Py_DECREF(found);
    return 0;
}

static int put_datetime(Output *out, State *state, Type type, PyObject *value) {
    if (!PyDateTime_CheckExact(value)) return decline();
    int64_t offset;
    int has_zone;
    if (find_offset(state, value, &offset, &has_zone)) return -1;
    if (has_zone != (type == TIMESTAMPTZ)) return decline();
    int minutes = PyDateTime_DATE_GET_HOUR(value) * 60 + PyDateTime_DATE_GET_MINUTE(value);
    int64_t seconds = (int64_t)day_of(value) * 86400 + minutes * 60;
    seconds += PyDateTime_DATE_GET_SECOND(value);
    int64_t moment = seconds * SECOND + PyDateTime_DATE_GET_MICROSECOND(value) - offset;
    if (moment <= EARLIEST || moment >= LATEST) return decline();
    put32(out, 8);
    put64(out, (uint64_t)moment);
    return 0;
}

static int put_interval(Output *out, PyObject *value) {
    if (!PyDelta_CheckExact(value)) return decline();
    int64_t time = PyDateTime_DELTA_GET_SECONDS(value) * SECOND;
    put32(out, 16);
    put64(out, (uint64_t)(time + PyDateTime_DELTA_GET_MICROSECONDS(value)));
    put32(out, (uint32_t)PyDateTime_DELTA_GET_DAYS(value));
    put32(out, 0); /* months */
    return 0;
}

#define FIXED 20 /* bytes of a field of a fixed width, at most */

static int put_field(Output *out, State *state, Type type, PyObject *value) {
    if (reserve(out, FIXED)) return -1;
    if (value == Py_None) {
        put32(out, UINT32_MAX); /* the length of NULL */
        return 0;
    }
    switch (type) {
    case SMALLINT:
    case INTEGER:
    case BIGINT:
        return put_integer(out, type, value);
    case REAL:
    case DOUBLE:
        return put_float(out, type, value);
    case BOOLEAN:
        if (!PyBool_Check(value)) return decline();
        put32(out, 1);
        *out->at++ = value == Py_True;
        return 0;
    case BYTEA:
        if (!PyBytes_CheckExact(value)) return decline();
        return put_bytes(out, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
    case TEXT:
    case JSONB:
        return put_text(out, type, value);
    case UUID:
        return put_uuid(out, state, value);
    case DATE:
        return put_date(out, value);
    case TIME:
        return put_time(out, value);
    case TIMESTAMP:
    case TIMESTAMPTZ:
        return put_datetime(out, state, type, value);
    case INTERVAL:
        return put_interval(out, value);
    }
    return decline();
}

/* -- rows ------------------------------------------------------------------------------------ */

static int put_row(Output *out, State *state, const char *types, Py_ssize_t width, PyObject *row) {
    PyObject *values = PySequence_Tuple(row); /* the same object, if it is a tuple */
    if (values == NULL) return -1;
    int failed = PyTuple_GET_SIZE(values) == width ? reserve(out, 2) : decline();
    if (!failed) put16(out, (uint16_t)width);
    for (Py_ssize_t place = 0; place < width && !failed; place++)
        failed = put_field(out, state, (Type)types[place], PyTuple_GET_ITEM(values, place));
    Py_DECREF(values);
    return failed;
}

PyDoc_STRVAR(encode_doc,
"encode(types, rows, start, stop, size, /)\n--\n\n"
"Encode rows from `start` to `stop`, at least one, until the piece has `size` bytes.\n\n"
"`types` has a code per column. Returns the piece and the place after its last row. The first\n"
"piece begins with the header, the last one ends with the trailer.");

static PyObject *encode(PyObject *module, PyObject *arguments) {
    State *state = PyModule_GetState(module);
    const char *types;
    PyObject *rows;
    Py_ssize_t width, start, stop, size;
    if (!PyArg_ParseTuple(arguments, "y#Onnn", &types, &width, &rows, &start, &stop, &size))
        return NULL;
    if (width > INT16_MAX || start < 0 || start > stop || size < 0 || size > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a number is out of range");
        return NULL;
    }
    Output out = {NULL, NULL, NULL, NULL};
    Py_ssize_t capacity = size + size / 8 + (Py_ssize_t)sizeof HEADER;
    out.bytes = PyBytes_FromStringAndSize(NULL, capacity);
    if (out.bytes == NULL) return NULL;
    out.base = out.at = PyBytes_AS_STRING(out.bytes);
    out.end = out.base + capacity;
    if (start == 0) put(&out, HEADER, sizeof HEADER);
    Py_ssize_t place = start;
    while (place < stop && (place == start || out.at - out.base < size)) {
        PyObject *row = PySequence_GetItem(rows, place);
        if (row == NULL) goto failed;
        int is_bad = put_row(&out, state, types, width, row);
        Py_DECREF(row);
        if (is_bad) goto failed;
        place++;
    }
    if (place == stop) {
        if (reserve(&out, 2)) goto failed;
        put16(&out, UINT16_MAX); /* the trailer */
    }
    if (resize(&out, out.at - out.base)) return NULL;
    return Py_BuildValue("Nn", out.bytes, place);
failed:
    Py_XDECREF(out.bytes);
    return NULL;
}

/* -- module ---------------------------------------------------------------------------------- */

static int add_codes(PyObject *module) {
    PyObject *codes = PyDict_New();
    if (codes == NULL) return -1;
    for (size_t place = 0; place < sizeof TYPES / sizeof TYPES[0]; place++) {
        PyObject *code = PyLong_FromLong(TYPES[place].type);
        int failed = code == NULL || PyDict_SetItemString(codes, TYPES[place].name, code);
        Py_XDECREF(code);
        if (failed) {
            Py_DECREF(codes);
            return -1;
        }
    }
    int failed = PyModule_AddObjectRef(module, "codes", codes);
    Py_DECREF(codes);
    return failed;
}

static int exec_module(PyObject *module) {
    PyDateTime_IMPORT;
    if (PyDateTimeAPI == NULL) return -1;
    State *state = PyModule_GetState(module);
    PyObject *uuid = PyImport_ImportModule("uuid");
    if (uuid == NULL) return -1;
    state->uuid = PyObject_GetAttrString(uuid, "UUID");
    Py_DECREF(uuid);
    if (state->uuid == NULL) return -1;
    if ((state->name_int = PyUnicode_InternFromString("int")) == NULL) return -1;
    if ((state->name_utcoffset = PyUnicode_InternFromString("utcoffset")) == NULL) return -1;
    if ((state->half = PyLong_FromLong(64)) == NULL) return -1;
    return add_codes(module);
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    Py_VISIT(state->uuid);
    return 0;
}

static int clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->uuid);
    Py_CLEAR(state->name_int);
    Py_CLEAR(state->name_utcoffset);
    Py_CLEAR(state->half);
    return 0;
}

static void release(void *module) {
    clear(module);
}

static PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS, encode_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, exec_module},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_rows",
    .m_doc = "Rows of Python values as binary COPY.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__rows(void) {
    return PyModuleDef_Init(&definition);
}
