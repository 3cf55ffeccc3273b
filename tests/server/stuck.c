/* Preloaded into a server: an HTTP library that never lets a suspended request go on. */
void MHD_resume_connection(void *connection);

void MHD_resume_connection(void *connection)
{
    (void)connection;
}
