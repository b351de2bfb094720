new EventSource("/api/events");
