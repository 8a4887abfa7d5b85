{{- define "triton-sam.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of a part. Argument: a list of the context and the part, triton or rest. */}}
{{- define "triton-sam.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "triton-sam.labels" -}}
{{- $root := index . 0 -}}
{{ include "triton-sam.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{/* An image of the registry. Argument: a list of the context and the part, triton, export or service. */}}
{{- define "triton-sam.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{- printf "%s/%s:%s" (trimSuffix "/" $root.Values.images.registry) $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}

{{- define "triton-sam.serviceAccount" -}}
{{- default (include "triton-sam.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Names by which callers address the REST service: those of its Service, and the hosts that lead to it. */}}
{{- define "triton-sam.restHosts" -}}
{{- $v := .Values -}}
{{- $name := printf "%s-rest" (include "triton-sam.fullname" .) -}}
{{- $inside := printf "%s.%s" $name .Release.Namespace -}}
{{- $hosts := list $name $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside) -}}
{{- if and $v.ingress.enabled (eq $v.ingress.target "rest") -}}
{{- $hosts = append $hosts $v.ingress.host -}}
{{- end -}}
{{- if and $v.gateway.enabled (eq $v.gateway.target "rest") -}}
{{- $hosts = concat $hosts $v.gateway.hosts -}}
{{- end -}}
{{- if and $v.openshift.route.enabled (eq $v.openshift.route.target "rest") $v.openshift.route.host -}}
{{- $hosts = append $hosts $v.openshift.route.host -}}
{{- end -}}
{{- $hosts | uniq | toYaml -}}
{{- end -}}

{{/* Name under which clients ask for a model of `models`. */}}
{{- define "triton-sam.variant" -}}
{{- default .family .name -}}
{{- end -}}

{{/* Variants to load, separated by blanks: their session and video models, with the models that they call. */}}
{{- define "triton-sam.load" -}}
{{- $names := list -}}
{{- range .Values.models -}}
{{- $names = append $names (include "triton-sam.variant" .) -}}
{{- end -}}
{{- join " " $names -}}
{{- end -}}

{{/* A sum over `models` and the server, in MiB. Argument: a list of the context and the column of files/presets.yaml. */}}
{{- define "triton-sam.sum" -}}
{{- $presets := (index . 0).Files.Get "files/presets.yaml" | fromYaml -}}
{{- $column := index . 1 -}}
{{- $sum := int (index $presets.server $column) -}}
{{- range (index . 0).Values.models -}}
{{- $sum = add $sum (index $presets .family .size $column) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Size of /dev/shm in MiB. On a processor it also holds the embeddings of each session and video model. */}}
{{- define "triton-sam.sharedMemory" -}}
{{- $server := (.Files.Get "files/presets.yaml" | fromYaml).server -}}
{{- $each := ternary 0 (int .Values.sessionCacheMiB) .Values.gpu.enabled -}}
{{- $caches := len .Values.models -}}
{{- range .Values.models -}}
{{- if has "--video" (default list .setup) -}}
{{- $caches = add $caches 1 -}}
{{- end -}}
{{- end -}}
{{- add $server.sharedMemory (mul $caches (add $server.sharedMemoryEach $each)) -}}
{{- end -}}

{{- define "triton-sam.resources" -}}
{{- if .Values.resources -}}
{{- toYaml .Values.resources -}}
{{- else -}}
{{- $memory := add (include "triton-sam.sum" (list . "memory")) (include "triton-sam.sharedMemory" .) -}}
requests:
  cpu: {{ add (ternary 1 3 .Values.gpu.enabled) (len .Values.models) | quote }}
  memory: {{ $memory }}Mi
{{- if .Values.gpu.enabled }}
  {{ .Values.gpu.resource }}: {{ .Values.gpu.count | quote }}
{{- end }}
limits:
  memory: {{ mul 2 $memory }}Mi
{{- if .Values.gpu.enabled }}
  {{ .Values.gpu.resource }}: {{ .Values.gpu.count | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Affinity to nodes with the right GPU, also in each term of the user, because the terms are alternatives. */}}
{{- define "triton-sam.affinity" -}}
{{- $wanted := list -}}
{{- if and .Values.gpu.enabled .Values.gpu.products -}}
{{- $wanted = append $wanted (dict "key" "nvidia.com/gpu.product" "operator" "In" "values" .Values.gpu.products) -}}
{{- end -}}
{{- if and .Values.gpu.enabled .Values.gpu.checkMemory -}}
{{- $least := sub (include "triton-sam.sum" (list . "gpuMemory")) 1 | toString -}}
{{- $wanted = append $wanted (dict "key" "nvidia.com/gpu.memory" "operator" "Gt" "values" (list $least)) -}}
{{- end -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- if $wanted -}}
{{- $terms := list -}}
{{- range dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (concat (default list .matchExpressions) $wanted)) .) -}}
{{- end -}}
{{- $required := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $affinity = mergeOverwrite $affinity (dict "nodeAffinity" $required) -}}
{{- end -}}
{{- if $affinity }}{{ toYaml $affinity }}{{ end -}}
{{- end -}}

{{/* On OpenShift the cluster chooses user, group and fsGroup. */}}
{{- define "triton-sam.podSecurity" -}}
runAsNonRoot: true
{{- if not .Values.openshift.enabled }}
runAsUser: {{ .Values.securityContext.id }}
runAsGroup: {{ .Values.securityContext.id }}
fsGroup: {{ .Values.securityContext.id }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "triton-sam.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "triton-sam.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Folder of the model repository in the server's container. */}}
{{- define "triton-sam.repository" -}}
{{- ternary .Values.modelStore.image.path "/models" (eq .Values.modelStore.type "image") -}}
{{- end -}}

{{- define "triton-sam.severalPods" -}}
{{- if or (and .Values.autoscaling.enabled (gt (int .Values.autoscaling.maxReplicas) 1)) (and (not .Values.autoscaling.enabled) (gt (int .Values.replicas) 1)) }}yes{{ end -}}
{{- end -}}

{{/* Service and port behind a target, rest or triton. Argument: a list of the context and the target. */}}
{{- define "triton-sam.targetService" -}}
{{- include "triton-sam.fullname" (index . 0) }}{{ if eq (index . 1) "rest" }}-rest{{ end -}}
{{- end -}}

{{/* Paths of Triton that clients need. The others let a client load models, or read memory of the host. */}}
{{- define "triton-sam.paths" -}}
- {type: PathPrefix, value: /v2/health}
- {type: PathPrefix, value: /v2/models}
- {type: Exact, value: /v2}
- {type: Exact, value: /v2/repository/index}
{{- end -}}

{{- define "triton-sam.grpcMethods" -}}
- ServerLive
- ServerReady
- ServerMetadata
- ModelReady
- ModelMetadata
- ModelConfig
- ModelInfer
- RepositoryIndex
{{- end -}}
