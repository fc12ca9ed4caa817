/* The module breakgraph.driver._native. */
#include "native.h"

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = -1};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *made = PyModule_Create(&module);
    stream_name = PyUnicode_InternFromString("stream");
    if (made == NULL || stream_name == NULL || PyModule_AddType(made, &CallType) || PyModule_AddType(made, &SequenceType)
        || PyModule_AddType(made, &ClaimType) || PyModule_AddType(made, &RoundType)
        || PyModule_AddType(made, &DetourType)) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
