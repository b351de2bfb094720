{{/* The name of all resources: the release, followed by "slotfront" unless the release contains it. */}}
{{- define "slotfront.name" -}}
{{- if contains "slotfront" .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-slotfront" .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* The labels that select pods. They never change. */}}
{{- define "slotfront.selector" -}}
app.kubernetes.io/name: slotfront
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "slotfront.labels" -}}
{{ include "slotfront.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The configuration. It refers to secrets by file. */}}
{{- define "slotfront.config" -}}
[server]
listen = "0.0.0.0:8080"
admin_listen = "0.0.0.0:9899"
max_in_flight = {{ int .Values.server.maxInFlight }}
max_connections = {{ int .Values.server.maxConnections }}
unready_before_stop = "{{ int .Values.server.unreadySeconds }}s"
drain_timeout = "{{ int .Values.server.drainSeconds }}s"
trusted_proxies = {{ toJson .Values.server.trustedProxies }}
cors_origins = {{ toJson .Values.server.corsOrigins }}

[auth]
keys_file = "/etc/slotfront/keys/keys.toml"
# This file is lost with the pod. Quotas that outlive pods need the shared store.
usage_file = "/var/lib/slotfront/usage.json"
{{- if .Values.adminToken.name }}
admin_token = "file:/etc/slotfront/secrets/admin-token"
{{- end }}
{{- if .Values.sharedSecret.name }}

[shared]
url = "file:/etc/slotfront/secrets/shared"
{{- else if .Values.shared }}

[shared]
url = {{ .Values.shared | quote }}
{{- end }}
{{- range $i, $upstream := .Values.upstreams }}

[[upstream]]
name = {{ $upstream.name | quote }}
{{- if $upstream.secret }}
url = "file:/etc/slotfront/secrets/upstream-{{ $i }}"
{{- else }}
url = {{ $upstream.url | quote }}
{{- end }}
{{- with $upstream.tier }}
tier = {{ int . }}
{{- end }}
{{- with $upstream.rps }}
rps = {{ int . }}
{{- end }}
{{- with $upstream.maxInFlight }}
max_in_flight = {{ int . }}
{{- end }}
{{- if $upstream.http2 }}
http2 = true
{{- end }}
{{- with $upstream.genesis }}
genesis = {{ . | quote }}
{{- end }}
{{- with $upstream.headers }}
headers = { {{ $headers := . }}{{ range $j, $name := keys . | sortAlpha }}{{ if $j }}, {{ end }}{{ $name }} = "file:/etc/slotfront/secrets/upstream-{{ $i }}-{{ $name }}"{{ end }} }
{{- end }}
{{- end }}

{{ .Values.config }}
{{- end -}}

{{/* The sources of the secret files. */}}
{{- define "slotfront.secrets" -}}
{{- with .Values.adminToken.name }}
- secret: {name: {{ . | quote }}, items: [{key: {{ $.Values.adminToken.key | quote }}, path: admin-token}]}
{{- end }}
{{- with .Values.sharedSecret.name }}
- secret: {name: {{ . | quote }}, items: [{key: {{ $.Values.sharedSecret.key | quote }}, path: shared}]}
{{- end }}
{{- range $i, $upstream := .Values.upstreams }}
{{- with $upstream.secret }}
- secret: {name: {{ .name | quote }}, items: [{key: {{ .key | quote }}, path: "upstream-{{ $i }}"}]}
{{- end }}
{{- range $name, $from := $upstream.headers }}
- secret: {name: {{ $from.name | quote }}, items: [{key: {{ $from.key | quote }}, path: "upstream-{{ $i }}-{{ $name }}"}]}
{{- end }}
{{- end }}
{{- end -}}
