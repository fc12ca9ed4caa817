/* The module breakgraph.driver._native. */
#include "native.h"

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = -1};

PyMODINIT_FUNC PyInit__native(void)
{
    static PyTypeObject *types[] = {&CallType, &SequenceType, &ClaimType, &TallyType,
                                    &RoomType, &RoundType, &UsualType, &EndingType,
                                    &DetourType};
    PyObject *made = PyModule_Create(&module);
    stream_name = PyUnicode_InternFromString("stream");
    if (made == NULL || stream_name == NULL || !usual_names())
        goto failed;
    for (size_t at = 0; at < sizeof types / sizeof *types; at++)
        if (PyModule_AddType(made, types[at]))
            goto failed;
    return made;
failed:
    Py_XDECREF(made);
    return NULL;
}
