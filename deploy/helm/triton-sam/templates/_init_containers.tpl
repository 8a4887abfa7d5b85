{{/* Containers that fill the model store before the server starts: the copy of a bucket, exports, settings of models. */}}
{{- define "triton-sam.initContainers" -}}
{{- if has .Values.modelStore.type (list "s3" "gcs") }}
{{ include "triton-sam.syncContainer" . }}
{{- end }}
{{- if and (eq .Values.modelStore.type "pvc") .Values.modelStore.export }}
{{- range $number, $model := .Values.models }}
{{ include "triton-sam.exportContainer" (list $ $number $model) }}
{{- end }}
{{- end }}
{{- range $number, $model := .Values.models }}
{{- if $model.config }}
- name: config-{{ $number }}
  image: {{ include "triton-sam.image" (list $ "triton") }}
  imagePullPolicy: {{ $.Values.images.pullPolicy }}
  command: [triton-sam, config, {{ include "triton-sam.variant" $model }}]
  args:
    {{- toYaml $model.config | nindent 4 }}
  env:
    - name: TRITON_SAM_REPOSITORY
      value: /models
    - name: HOME
      value: /tmp
  resources:
    requests: {cpu: 100m, memory: 256Mi}
    limits: {memory: 1Gi}
  {{- include "triton-sam.initMounts" $ | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "triton-sam.initMounts" -}}
securityContext:
  {{- include "triton-sam.containerSecurity" . | nindent 2 }}
volumeMounts:
  - name: models
    mountPath: /models
  - name: tmp
    mountPath: /tmp
{{- end -}}

{{- define "triton-sam.syncContainer" -}}
{{- $store := .Values.modelStore -}}
- name: sync
  image: {{ .Values.images.sync }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  command: [rclone]
  # A file that is not in the bucket goes away, and an error ends the pod's start.
  args: [sync, ":{{ $store.type }}:{{ $store.bucket.path }}", /models, --create-empty-src-dirs, --transfers=8, --verbose]
  env:
    - name: HOME
      value: /tmp
    - name: RCLONE_CONFIG
      value: /tmp/rclone.conf
    {{- if eq $store.type "s3" }}
    - name: RCLONE_S3_ENV_AUTH
      value: "true"
    - name: RCLONE_S3_DIRECTORY_MARKERS
      value: "true"
    - name: RCLONE_S3_PROVIDER
      value: {{ ternary "Other" "AWS" (ne $store.bucket.endpoint "") }}
    {{- with $store.bucket.region }}
    - name: RCLONE_S3_REGION
      value: {{ . }}
    {{- end }}
    {{- with $store.bucket.endpoint }}
    - name: RCLONE_S3_ENDPOINT
      value: {{ . }}
    {{- end }}
    {{- else }}
    - name: RCLONE_GCS_ENV_AUTH
      value: {{ ternary "false" "true" (ne $store.bucket.credentialsSecret "") | quote }}
    - name: RCLONE_GCS_BUCKET_POLICY_ONLY
      value: "true"
    {{- end }}
  {{- with $store.bucket.credentialsSecret }}
  envFrom:
    - secretRef:
        name: {{ . }}
  {{- end }}
  resources:
    requests: {cpu: 500m, memory: 512Mi}
    limits: {memory: 2Gi}
  {{- include "triton-sam.initMounts" . | nindent 2 }}
{{- end -}}

{{/* Downloads and exports once, because the volume keeps the models. Argument: a list of context, number and model. */}}
{{- define "triton-sam.exportContainer" -}}
{{- $root := index . 0 -}}
{{- $model := index . 2 -}}
{{- $presets := $root.Files.Get "files/presets.yaml" | fromYaml -}}
{{- $memory := index $presets $model.family $model.size "exportMemory" -}}
- name: export-{{ index . 1 }}
  image: {{ include "triton-sam.image" (list $root "export") }}
  imagePullPolicy: {{ $root.Values.images.pullPolicy }}
  args:
    - {{ $model.family }}
    - {{ $model.size }}
    {{- with $model.name }}
    - --name={{ . }}
    {{- end }}
    {{- with $model.setup }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - name: TRITON_SAM_REPOSITORY
      value: /models
    - name: HOME
      value: /tmp
    - name: HF_ENDPOINT
      value: {{ $root.Values.modelStore.huggingFaceEndpoint }}
    {{- with $root.Values.modelStore.mirror }}
    - name: TRITON_SAM_MIRROR
      value: {{ . }}
    {{- end }}
    {{- with $root.Values.modelStore.huggingFaceSecret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ . }}
          key: token
    {{- end }}
  resources:
    requests:
      cpu: "1"
      memory: {{ $memory }}Mi
    limits:
      memory: {{ mul 2 $memory }}Mi
  {{- include "triton-sam.initMounts" $root | nindent 2 }}
    - name: checkpoints
      mountPath: /checkpoints
{{- end -}}
